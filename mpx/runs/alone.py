"""A process of a sweep that measures the speed of its setting and nothing else. It leaves no run, only a report to the sweep."""

from omegaconf import DictConfig

from mpx import environment_variables, sweep
from mpx.imports import heavy
from mpx.record.result import EXIT, place_of
from mpx.runs import signals, watch


def measure_and_report(cfg: DictConfig) -> int:
    """Returns the exit code. Raises UserError for a setting that this machine cannot meet."""
    watch.end_with_parent(environment_variables.parent_process())
    signals.stop_once()
    with signals.held(), heavy():
        from mpx.measure.environment import environment  # torch and Lightning, which take seconds
        from mpx.runs.explain import explain
        from mpx.training.alone import speed_alone

    folder = environment_variables.report_file().parent
    try:
        speed = speed_alone(cfg, folder)
    except (KeyboardInterrupt, SystemExit) as error:
        sweep.report("interrupted", None, "interrupted")
        return signals.TERMINATED if isinstance(error, SystemExit) else EXIT["interrupted"]
    except Exception as error:
        if (line := explain(error, cfg, folder)) is None:
            raise
        sweep.report("failed", None, line)
        return 1
    here = environment(cfg.trainer.devices)
    sweep.report("completed", None, "", {"speed": speed | {"host": here["host"]}, "place": place_of(here)})
    return 0
