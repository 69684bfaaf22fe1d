"""How many examples a property is tried with."""

from hypothesis import settings


def examples(count: int) -> settings:
    """Try ``count`` examples, or a tenth of them in `make check`."""
    profile = settings.get_profile(settings.get_current_profile_name())
    return settings(max_examples=max(1, count * profile.max_examples // 100))
