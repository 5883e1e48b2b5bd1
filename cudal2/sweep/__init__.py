"""Several runs of one command: its values are swept by Hydra's sweepers, its runs started by Hydra's launchers."""
