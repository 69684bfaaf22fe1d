"""A Flower deployment on this machine: a SuperLink and SuperNodes, with TLS and registered keys."""
