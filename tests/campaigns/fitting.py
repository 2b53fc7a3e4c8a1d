"""`mongefit fit` in a process that tells how far it is, and stops inside a save on request.

    python fitting.py FOLDER PAUSE SAVE fit …

FOLDER gets a file `log` with the number of steps done, line by line, and `paused` once the process
waits inside save number SAVE at PAUSE: "half" of the bytes written, before or after "fsync" or
"replace". It then waits to be killed. PAUSE "-" is for none. A checkpoint is due after every
interval of training.
"""

from __future__ import annotations

import os
import sys
import time

folder, pause, number, *arguments = sys.argv[1:]


def wait_to_be_killed():
    with open(os.path.join(folder, "paused"), "w"):
        time.sleep(600)


def hold(module, name, *, before):
    """Wait before or after a function."""
    function = getattr(module, name)

    def held(*arguments, **options):
        if before:
            wait_to_be_killed()
        result = function(*arguments, **options)
        wait_to_be_killed()
        return result

    setattr(module, name, held)


def main():
    import mongefit._cli
    import mongefit._training.checkpoints as checkpoints
    import mongefit._training.run as run
    from mongefit._io import atomic_file

    checkpoints.Checkpoint.__init__.__defaults__ = (0.0, False)
    log = open(os.path.join(folder, "log"), "a", buffering=1)  # noqa: SIM115
    report, write = run._report, checkpoints.write_tensors
    saves = 0

    def logged(problem, progress, *rest):
        log.write(f"{progress.done}\n")
        return report(problem, progress, *rest)

    def in_halves(path, data, **options):
        with atomic_file(path, **options) as stream:
            stream.write(data[: len(data) // 2])
            stream.flush()
            wait_to_be_killed()

    def counted(*arguments, **options):
        nonlocal saves
        saves += 1
        if saves == int(number) and pause == "half":
            import mongefit._io.tensors

            mongefit._io.tensors.atomic_write = in_halves
        elif saves == int(number) and pause != "-":
            name, _, when = pause.partition(" ")
            hold(os, name, before=when == "before")
        write(*arguments, **options)

    run._report, checkpoints.write_tensors = logged, counted
    sys.argv[1:] = arguments
    log.write("0\n")  # from here on the program answers signals
    mongefit._cli.main()


main()
