"""The process of a worker: how it starts, how Ctrl-C reaches it while it waits, and how it ends."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import traceback
from types import TracebackType

from kelp import _kelp

# For a failure that may not recur. Python itself exits with 1, and a script that does so is not restarted.
_TRY_AGAIN = 75

_exit_status: int | None = None
_opened = False
_left_at: int | None = None  # the step at which the script left its loop
_interrupted = False


def is_worker() -> bool:
    """Whether this process was started as a worker of a job, or to describe a job."""
    options = [word.split("=")[0] for word in sys.argv[1:]]
    return "--job" in options or "KELP_JOB" in os.environ or "KELP_DESCRIBE" in os.environ


def check_place() -> None:
    """Refuse a Worker where this process may not have one. Called before a Worker is created."""
    if not is_worker():
        raise RuntimeError("this process has no place in a job: start the script with kelp run, not with python")
    if _opened:
        raise RuntimeError(
            "a second Worker in one script: kelp run trains the job of the first one; make two scripts, or one that "
            "is started twice with other arguments"
        )


def _where(trace: TracebackType | None) -> str:
    """The innermost line of the script, or else the innermost line of all."""
    frames = traceback.extract_tb(trace)
    if not frames:
        return ""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    own = [frame for frame in frames if script and os.path.realpath(frame.filename) == os.path.realpath(script)]
    frame = own[-1] if own else frames[-1]
    return f"{os.path.basename(frame.filename)}:{frame.lineno}: "


def line_about(error: BaseException) -> str:
    """One line: file, line and exception."""
    text = " ".join(str(error).split())
    name = "" if isinstance(error, (_kelp.InvalidError, _kelp.FailedError)) else type(error).__name__
    return _where(error.__traceback__) + ": ".join(part for part in (name, text) if part)


def _is_refusal(error: BaseException) -> bool:
    """Whether this package refuses a mistake in one line, to which a traceback would add nothing."""
    frames = traceback.extract_tb(error.__traceback__)
    own = bool(frames) and frames[-1].filename.startswith(os.path.dirname(__file__) + os.sep)
    own = own and error.__cause__ is None  # otherwise from a data process, with its own traceback
    return hasattr(error, "exit_status") or own and isinstance(error, (ValueError, TypeError, RuntimeError))


def _end_with_line(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    global _exit_status, _interrupted
    if issubclass(kind, KeyboardInterrupt):
        _interrupted = True
        sys.__excepthook__(kind, error, trace)
        return
    _exit_status = getattr(error, "exit_status", 2)
    if _exit_status == 1:
        _exit_status = _TRY_AGAIN
    if not _is_refusal(error):
        sys.__excepthook__(kind, error, trace)
    print(line_about(error.with_traceback(trace)), file=sys.stderr, flush=True)


def _about_leaving(step: int) -> str:
    return (
        f"the script left its loop at step {step}, before the job was over; leave out break and exit(): train.epochs "
        "and train.max_steps say how long the job is, and train.patience stops it early"
    )


def _exit() -> None:
    """After an exception Python itself exits with 1, after which a worker that had joined is restarted.

    After sys.exit() or a break it would exit with the script's status: the job would wait for another worker, or start
    one that does the same.
    """
    if signal.getsignal(signal.SIGTERM) is _go_on:
        # Python restores handlers as it ends, so a SIGTERM would then hide the exit status.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    status = _exit_status
    if status is None and _left_at is not None and not _interrupted:
        print(f"{os.path.basename(sys.argv[0])}: {_about_leaving(_left_at)}", file=sys.stderr)
        status = 2
    if status is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def install() -> None:
    """Let a script that raises an exception end with one line, and an exit status that tells whether to retry."""
    sys.excepthook = _end_with_line
    atexit.register(_exit)  # registered first, so called last


def open_worker() -> _kelp.Worker:
    """Take the options of a worker out of sys.argv and open it. Ctrl-C ends the process while that waits."""
    global _opened
    check_place()
    handler = signal.getsignal(signal.SIGINT)
    on_main = threading.current_thread() is threading.main_thread()
    plain = on_main and handler is signal.default_int_handler
    if plain:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        worker = _kelp.Worker(sys.argv)
        _opened = True
        return worker
    finally:
        if plain:
            signal.signal(signal.SIGINT, handler)


class Loop:
    """The state of a worker's loop."""

    def __init__(self) -> None:
        self.step: int | None = None  # of the newest batch; None: not begun, or ended by itself

    def check(self, error: BaseException | None) -> None:
        """At the end of a worker's block: refuse that the script left the loop early without an error."""
        left = error is None or isinstance(error, SystemExit) and not error.code
        if left and self.step is not None:
            raise RuntimeError(_about_leaving(self.step)) from None

    def close(self) -> None:
        global _left_at
        if self.step is not None:
            _left_at = self.step
        self.step = None


def _go_on(number: int, frame: object) -> None:
    pass


class Interrupts:
    """Signals for a worker, whose calls wait in C, where Python's handlers do not run.

    SIGINT ends such a call, and Python raises KeyboardInterrupt. SIGTERM, if the script has no handler of its own, ends
    the loop; submitted batches are used.
    """

    def __init__(self, worker: _kelp.Worker) -> None:
        self._worker = worker
        self._pipe: tuple[int, int] | None = None
        if threading.current_thread() is not threading.main_thread():
            return
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._fd_before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        if signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, _go_on):
            signal.signal(signal.SIGTERM, self._stop)
        self._thread = threading.Thread(target=self._watch, name="kelp-interrupts", daemon=True)
        self._thread.start()

    def _stop(self, number: int, frame: object) -> None:
        self._worker.stop()

    def _watch(self) -> None:
        global _interrupted
        assert self._pipe is not None
        while signals := os.read(self._pipe[0], 64):
            _interrupted = _interrupted or signal.SIGINT in signals
            if signal.SIGINT in signals or signal.SIGTERM in signals:
                self._worker.interrupt()

    def close(self) -> None:
        if self._pipe is None:
            return
        if signal.getsignal(signal.SIGTERM) == self._stop:
            # The lines after the loop have the time that is left until the job ends.
            signal.signal(signal.SIGTERM, _go_on if self._worker.over() else signal.SIG_DFL)
        signal.set_wakeup_fd(self._fd_before)
        os.close(self._pipe[1])
        self._thread.join()
        os.close(self._pipe[0])
        self._pipe = None
