"""``python -m wse_sim.cli`` is ``wse-sim``."""

from wse_sim.door import main

if __name__ == "__main__":
    main()
