"""The paper's CNN, and small models for small data; any other ``torch.nn.Module`` works as well."""

from gradsift.models.local_response_norm import LocalResponseNorm
from gradsift.models.named import model, models
from gradsift.models.paper_cnn import paper_cnn
from gradsift.models.small import small_cnn, small_mlp

__all__ = ["LocalResponseNorm", "model", "models", "paper_cnn", "small_cnn", "small_mlp"]
