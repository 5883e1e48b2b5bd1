"""A model of speed: which setting of the kernel families is fast for a shape that nobody measured.

`facts` works out what an expert would, `trees` answers, `model` is what ships, as `data/cost_model/TARGET.npz`, which
`experiments/h200/cost_model/labeller.py` fits to rounds of exploring. Cost models in this sense are TVM's (L. Zheng et
al., Ansor, OSDI 2020). It ranks settings; its figures are no promise.
"""

from cudal2.cost_model.facts import Columns, Setting
from cudal2.cost_model.model import Model, read, shipped
from cudal2.cost_model.trees import Trees

__all__ = ["Columns", "Model", "Setting", "Trees", "read", "shipped"]
