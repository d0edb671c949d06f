"""Times all-reduce of BF16 as PyTorch offers it, inside CUDA graphs: NCCL and symmetric memory (one-shot
and two-shot), a process a GPU. Usage: torch-allreduce.py [GPUS]. The peer of tools/gpu.sh pair."""
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
import torch.multiprocessing as processes

CHAIN, REPLAYS = 50, 7
SIZES = [12 << 10, 48 << 10, 192 << 10, 768 << 10, 3 << 20, 12 << 20, 64 << 20]


def time_of(operate):
    """Microseconds an operation: the median of replays of a graph with a chain of them."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        operate()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(CHAIN):
                operate()
        times = []
        for _ in range(REPLAYS + 1):
            dist.barrier()
            torch.cuda.synchronize()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1000 / CHAIN)
    return sorted(times[1:])[REPLAYS // 2]


def run(rank, ranks):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29571", RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    group = dist.group.WORLD.group_name
    ops = torch.ops.symm_mem
    if rank == 0:
        print("bytes: us NCCL, symmetric memory one-shot, two-shot")
    for size in SIZES:
        plain = torch.randn(size // 2, device="cuda").to(torch.bfloat16)
        shared = symmetric.empty(size // 2, dtype=torch.bfloat16, device="cuda")
        symmetric.rendezvous(shared, group=dist.group.WORLD)
        shared.copy_(plain)
        row = [time_of(lambda: dist.all_reduce(plain)),
               time_of(lambda: ops.one_shot_all_reduce(shared, "sum", group)),
               time_of(lambda: ops.two_shot_all_reduce_(shared, "sum", group))]
        if rank == 0:
            print("%9d: %9.2f %9.2f %9.2f" % (size, *row), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else torch.cuda.device_count()
    processes.spawn(run, (count,), nprocs=count)
