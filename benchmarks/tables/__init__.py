"""Tables of the pages, by subject; :mod:`benchmarks.pages` puts them into the pages."""
