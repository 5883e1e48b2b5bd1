"""Workers in processes of their own: `pool.Pool`, on this machine's `processes` or on the nodes of a Ray `cluster`.

Nothing is imported here: whoever needs `lifetime` alone does not wait for torch.
"""
