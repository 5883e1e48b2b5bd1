"""Workers in processes of their own: `pool.Pool`, on this machine's `processes` or on the nodes of a Ray `cluster`."""
