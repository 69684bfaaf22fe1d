"""Models by name: the paper's CNN and two small models. Any other ``torch.nn.Module`` can be trained as well."""

from gradsift.models.local_response_norm import LocalResponseNorm
from gradsift.models.named import model, models
from gradsift.models.paper_cnn import paper_cnn
from gradsift.models.small import small_cnn, small_mlp

__all__ = ["LocalResponseNorm", "model", "models", "paper_cnn", "small_cnn", "small_mlp"]
