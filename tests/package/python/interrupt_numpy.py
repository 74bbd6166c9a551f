#!/usr/bin/python3
"""Of two workers, one interrupts the other, which waits for a lane, and sees it end."""

import os
import select
import signal
import time

import kelp


def other():
    return [int(name[4:]) for name in os.listdir() if name.startswith("pid-") and int(name[4:]) != os.getpid()]


def interrupt(pid):
    process = os.pidfd_open(pid)
    os.kill(pid, signal.SIGINT)
    begin = time.monotonic()
    ended = select.select([process], [], [], 30)[0]
    assert ended, "a worker that was interrupted goes on"
    print(f"it ended after {time.monotonic() - begin:.3f} s", flush=True)
    open("was-interrupted", "w").close()


with kelp.Worker(train=800, fingerprint=1) as worker:
    worker.tensor("w", kelp.constant(4))
    worker._core.join()
    worker._joined = True
    open(f"pid-{os.getpid()}", "w").close()  # from here on it waits for lanes
    for batch in worker:
        others = other()
        if batch.step >= 3 and others and not os.path.exists("was-interrupted"):
            try:
                os.close(os.open("interrupting", os.O_CREAT | os.O_EXCL))
                interrupt(others[0])
            except FileExistsError:
                pass
        batch.gradient["w"] += 1
        batch.submit(1.0)
