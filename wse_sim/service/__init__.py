"""Serving by the name of a model: from options to a replica, a load and an answer; for command, studies, endpoint, predictor.

serving_run.py   a run, a search, load curves;  data.py  its numbers as result.json has them;  predict.py  a predictor
"""
