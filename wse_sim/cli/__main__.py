"""``python -m wse_sim.cli`` is ``wse-sim``."""

from wse_sim.cli import main

if __name__ == "__main__":
    main()
