"""Find or make the folder of a run, and lock it against other processes."""

import json
import shutil
import zipfile
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from mpx.errors import InUse, UserError
from mpx.system.whole_file import below_output_dir, try_writing, write_whole

DONE = ("completed", "diverged")  # statuses of a finished run; both are results
CONFIG, RESULT, CHECKPOINTS = "config.yaml", "result.json", "checkpoints"
LAST, BEST = (Path(CHECKPOINTS) / f"{name}.ckpt" for name in ("last", "best"))
PART = ".part"  # suffix of a checkpoint that is being written
DEPLOYED = "deploy.json"  # by mpx.deploy
LOCK = ".lock"
OWN_LOOP = "own"  # `loop` in the configuration of a run that mpx.Recorder recorded
READ_PARTS = ("setting", "data", "metrics", "speed", "precision")  # of a record, beside its status


@dataclass
class Folder:
    path: Path
    resume_from: Path | None = None  # the checkpoint to continue from
    finished: dict | None = None  # the record of a finished run, which is left as it is
    lock: FileLock | None = field(default=None, repr=False)
    # the folders that this run made, innermost first; () where the folder existed
    made: tuple[Path, ...] = ()
    replaces: bool = False  # the folder holds an earlier run, which `begin` removes
    begun: bool = False  # training has begun

    def begin(self, config: str) -> None:
        """Training begins: remove an earlier run, and write config.yaml with the text `config`.

        Everything that a user can get wrong has been checked by now.
        """
        if self.replaces:
            _empty(self.path)
        write_whole(self.path / CONFIG, config)
        self.begun = True

    def abandon(self) -> None:
        """The run ends before training begins: leave everything as it was."""
        if self.made:
            (self.path / LOCK).unlink(missing_ok=True)
        self.release()
        _remove(self.made)

    def release(self) -> None:
        """Let other processes change the run. Of several processes, the first alone holds its lock."""
        if self.lock is not None:
            self.lock.release()


def claim(
    setting_dir: Path,
    seed: int,
    if_exists: str,
    config: dict[str, Any],
    *,
    in_sweep: bool,
    ckpt_path: str | None,
) -> Folder:
    """Find or make the folder of one run, by the rules of `if_exists`, and lock it.

    config: the settings that change the result, as dotted keys.
    Raises UserError where the folder is not writable, in use by another process, of another configuration, or
    exists with if_exists=error.
    """
    name, ckpt = f"seed{seed}", Path(ckpt_path) if ckpt_path else None
    if if_exists == "auto" and not in_sweep:
        if_exists = "new"
    with below_output_dir(setting_dir):
        newest = _newest(setting_dir, name)
        if newest is None:
            # two sweeps may want the same run at this moment, and one of them leaves it to the other
            shared = in_sweep and if_exists in ("auto", "resume", "skip")
            return _make(setting_dir, name, ckpt, shared=shared)
        if if_exists == "new":
            return _make(setting_dir, name, ckpt)
        if if_exists == "error":
            raise UserError(
                f"{newest} is already there (if_exists=error). Use if_exists=new, skip, resume or overwrite."
            )
        if if_exists == "overwrite":
            return _replaced(newest, ckpt)
        refuse_difference(newest, config)
        return _continued(newest, if_exists, ckpt)


def _continued(path: Path, if_exists: str, ckpt: Path | None) -> Folder:
    """Leave a finished run as it is. Continue another from its newest checkpoint, or else from the start."""
    ended = DONE if if_exists == "resume" else (*DONE, "failed")
    record = read_result(path)
    if record is not None and record["status"] in DONE:
        return Folder(path, finished=record)
    folder = locked(path)  # a run that goes on elsewhere was not cut off, and has not failed
    record = read_result(path)  # another process may have finished it just before the lock
    if record is not None and record["status"] in ended:
        folder.release()
        return Folder(path, finished=record)
    if if_exists == "skip":
        raise UserError(
            f"{path} is there but its run was cut off (if_exists=skip). Use if_exists=resume to finish "
            "it or if_exists=new."
        )
    return replace(folder, resume_from=_newest_checkpoint(path) or ckpt)


def _newest_checkpoint(path: Path) -> Path | None:
    """Raises UserError where it is damaged."""
    last = path / LAST
    if last.is_file() and (reason := damage(last)) is not None:
        raise UserError(
            f"{last} is damaged ({reason}). Start again with if_exists=overwrite, or go on from the best "
            f"epoch with 'ckpt_path=\"{path / BEST}\"'."
        )
    return last if last.is_file() else None


def _make(setting_dir: Path, name: str, ckpt: Path | None, *, shared: bool = False) -> Folder:
    """Make a new folder `seed0`, or `seed0-2`, `seed0-3`, … shared: raise InUse if another process has just
    made the first one.
    """
    made = tuple(path for path in (setting_dir, *setting_dir.parents) if not path.exists())
    try:
        setting_dir.mkdir(parents=True, exist_ok=True)
    except OSError:  # a name that is too long, below a folder that was just made
        _remove(made)
        raise
    number, path = 1, setting_dir / name
    while True:
        try:
            path.mkdir()
        except FileExistsError:
            if shared:
                raise InUse(f"{path} is in use by another process. Wait for it.") from None
            number += 1
            path = setting_dir / f"{name}-{number}"
        else:
            return locked(path, resume_from=ckpt, made=(path, *made))


def _remove(made: tuple[Path, ...]) -> None:
    for path in made:
        with suppress(OSError):  # it was not made yet, or another run has begun in it
            path.rmdir()


def _replaced(path: Path, ckpt: Path | None) -> Folder:
    """Lock a folder whose run is removed when the new run begins."""
    if ckpt is not None and path.resolve() in ckpt.resolve().parents:
        raise UserError(
            f"ckpt_path={ckpt} lies in the folder that if_exists=overwrite would empty. Use if_exists=new."
        )
    written = {CONFIG, RESULT} & {entry.name for entry in path.iterdir()}
    if not written and any(entry.name != LOCK for entry in path.iterdir()):
        raise UserError(
            f"{path} was not written by mpx and is not overwritten. Move it away or use another study=."
        )
    return locked(path, resume_from=ckpt, replaces=True)


def _empty(path: Path) -> None:
    for entry in path.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != LOCK:
            entry.unlink()


def locked(path: Path, **known: Any) -> Folder:
    """The folder of a run that this process alone may change. known: further fields.

    Raises InUse; and UserError where the folder cannot be written, before the run trains for hours.
    """
    with below_output_dir(path):
        try_writing(path)
        lock = FileLock(path / LOCK)
        try:
            lock.acquire(timeout=0.2)  # who asks whether the run goes on holds it for a moment
        except Timeout:
            raise InUse(
                f"{path} is in use by another process. Wait for it, or use if_exists=new or another study=."
            ) from None
    return Folder(path, lock=lock, **known)


def goes_on(path: Path) -> bool:
    """Whether a process trains the run in `path` at this moment; False where this user may not see it. A lock
    file stays when its process ends.
    """
    try:
        if (path / LOCK).is_file():
            FileLock(path / LOCK).acquire(timeout=0).lock.release()
    except (OSError, Timeout) as error:
        return isinstance(error, Timeout)
    return False


def _newest(setting_dir: Path, name: str) -> Path | None:
    """The run with the highest number, for example `seed0-3`."""
    later = [path for path in setting_dir.glob(f"{name}-*") if path.name.removeprefix(f"{name}-").isdecimal()]
    first = setting_dir / name
    return max(
        later, key=lambda path: int(path.name.rpartition("-")[2]), default=first if first.exists() else None
    )


def stored(path: Path, part: str) -> dict[str, Any] | None:
    """A part of the config.yaml in `path`, such as `comparable` or `data`; None where it cannot be read."""
    try:
        found = yaml.safe_load((path / CONFIG).read_text(encoding="utf-8"))[part]
    except (OSError, ValueError, yaml.YAMLError, TypeError, KeyError, RecursionError):
        return None
    return found if isinstance(found, dict) and all(isinstance(key, str) for key in found) else None


def refuse_difference(path: Path, config: dict[str, Any]) -> None:
    """Raise UserError, which names the key, where the run in `path` was started with other settings."""
    before = stored(path, "comparable")
    if before is None:
        return
    for key in sorted(before.keys() & config.keys()):  # another version of mpx may have other keys
        if before[key] != config[key]:
            raise UserError(
                f"{path} was started with {key}={before[key]}, this command has {key}={config[key]}. "
                "Repeat the first command to continue it, or use if_exists=new."
            )


def read_result(path: Path) -> dict | None:
    """The record in `path`; None where there is no readable one."""
    try:
        record = json.loads((path / RESULT).read_text())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("status"), str):
        return None
    return record if all(isinstance(record.get(part, {}), dict) for part in READ_PARTS) else None


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None. Reads all of it, by the checksums that PyTorch writes and
    does not compare.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            part = archive.testzip()
    except Exception as error:  # in a damaged archive zipfile can raise nearly anything
        return " ".join(f"{error or type(error).__name__}".split())[:160]
    return None if part is None else f"the checksum of {part} does not match"
