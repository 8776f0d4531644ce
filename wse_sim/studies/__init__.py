"""Studies: many runs from one description, kept in a store, on one machine or on many.

schema.py       the description: what varies, what is kept fixed, what must hold
parameters.py   what can be varied, made from the declarations of options and constants
expressions.py  constraints
expand.py       from a description to settings
settings.py     from a setting to the options, the machine and the key of one run
quantities.py   the numbers of a result
evaluate.py     one captured graph on many settings
store.py        SQLite: one row per run
pool.py         where tasks run: in this process, or on Dask
runner.py       a study from its description to rows
search.py       the search for the best
pareto.py       the Pareto front, and the row to recommend
plots.py, page.py  pictures, and one page
"""
