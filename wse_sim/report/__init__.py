"""Views of a result: all functions only read a :class:`wse_sim.engine.result.Result`; none simulates.

==========  =====================================================================
tables      the summary, kernels and comparisons in 80 columns
data        the same numbers as JSON and as a data frame
heatmap     maps of the wafer as pictures
html        one self-contained page, with the wafer to zoom into
trace       timelines for Perfetto and Chrome
hta         breakdowns of time, and files for Holistic Trace Analysis
scalars     sweeps for TensorBoard
views       what they share: folded kernels, time bins, totals, energy
==========  =====================================================================
"""
