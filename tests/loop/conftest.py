from made_clock import clock

__all__ = ["clock"]  # the fixture
