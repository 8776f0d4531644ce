"""The HTTP endpoint: a simulated service that speaks OpenAI's interface, with vLLM's metrics.

simulated_clock.py      one event loop owns the lines; simulated time follows the clock of the wall, times a scale
requests.py  what clients ask, checked; answers as they expect them
metrics.py   names of vLLM for Prometheus
app.py       routes; server.py  binds and runs them
"""
