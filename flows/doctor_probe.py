"""Small programs that `mindcycle doctor` runs in processes of their own.

`python flows/doctor_probe.py operator` computes one product with MindSpore and says where.
`python flows/doctor_probe.py collective` sums over two processes on loopback.
"""

import os
import signal
import socket
import subprocess
import sys
import time

os.environ.setdefault("GLOG_v", "3")
SECONDS = 120
"""After that a program ends itself with SIGALRM."""


def operator() -> None:
    """One compiled and one eager operator, compared with numpy."""
    import mindspore
    import numpy as np
    from mindspore import ops

    def matmul(a: mindspore.Tensor, b: mindspore.Tensor) -> mindspore.Tensor:
        return ops.matmul(a, b)

    targets = ("Ascend", "GPU", "CPU")
    target = next(name for name in targets if mindspore.hal.is_available(name))
    mindspore.set_device(target)
    a, b = np.random.default_rng(0).standard_normal((2, 16, 16), dtype=np.float32)
    for name, product in (("eager", matmul), ("compiled", mindspore.jit(matmul))):
        found = product(mindspore.Tensor(a), mindspore.Tensor(b)).asnumpy()
        if not np.allclose(found, a @ b, atol=1e-4):
            sys.exit(f"the {name} matrix product is wrong by {np.abs(found - a @ b).max()}")
    print(f"device {target}")


def collective() -> None:
    """A scheduler and two workers; each worker adds its number to the other's."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {"MS_WORKER_NUM": "2", "MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": port}
    roles = [("MS_SCHED", "0"), ("MS_WORKER", "0"), ("MS_WORKER", "1")]
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "member"],
            env={**os.environ, **shared, "MS_ROLE": role, "MS_NODE_ID": number},
        )
        for role, number in roles
    ]
    # The scheduler waits for workers that are gone already, and they wait for one that failed.
    scheduler, *workers = processes
    while any(worker.poll() is None for worker in workers):
        if any(process.poll() for process in processes):
            break
        time.sleep(0.1)
    for process in processes:
        process.kill()
    codes = [worker.wait() for worker in workers]
    if any(codes):
        sys.exit(f"the workers ended with {codes}, the scheduler with {scheduler.poll()}")


def member() -> None:
    """One process of the collective, in the role its environment names."""
    import mindspore
    import numpy as np
    from mindspore import mint
    from mindspore.communication import get_rank, init

    mindspore.set_device("CPU")
    init()
    if os.environ["MS_ROLE"] != "MS_WORKER":
        return
    number = mindspore.Tensor(np.array([get_rank() + 1.0], dtype=np.float32))
    mint.distributed.all_reduce(number, group="mccl_world_group")
    if number.asnumpy().tolist() != [3.0]:
        sys.exit(f"1 + 2 over two processes gave {number.asnumpy()}")
    # One write with its newline: unbuffered, print makes two, and two ranks share a line.
    sys.stdout.write(f"rank {get_rank()} has the sum\n")
    sys.stdout.flush()
    # MindSpore's worker threads can hang an ordinary interpreter exit.
    os._exit(0)


if __name__ == "__main__":
    signal.alarm(SECONDS)
    {"operator": operator, "collective": collective, "member": member}[sys.argv[1]]()
