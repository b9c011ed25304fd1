"""vLLM's offline engine as a child process of `against_vllm.py`, run by the Python of vLLM's own environment.

A line of JSON on stdin, `{"prompts": [[token, …], …], "output": n}`, gives a line on the original stdout:
`[[seconds since the requests were given, request, new tokens], …]`.
"""

import json
import os
import sys
import time


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM logs to stdout
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    directory, dtype, context, threads = sys.argv[1:5]
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-int(threads) :])  # or it takes threads for all of them
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=directory,
        dtype=dtype,
        max_model_len=int(context),
        max_num_seqs=64,
        enable_prefix_caching=False,
        seed=0,
    )
    engine = llm.llm_engine
    print("ready", file=answers, flush=True)
    for number, line in enumerate(sys.stdin):
        work = json.loads(line)
        params = SamplingParams(ignore_eos=True, temperature=0.0, max_tokens=work["output"], detokenize=False)
        events = []
        seen = [0] * len(work["prompts"])
        started = time.perf_counter()
        for i, prompt in enumerate(work["prompts"]):
            engine.add_request(f"{number}/{i}", {"prompt_token_ids": prompt}, params)
        while engine.has_unfinished_requests():
            outputs = engine.step()
            now = time.perf_counter() - started
            for output in outputs:
                i = int(output.request_id.split("/")[1].split("-")[0])
                total = len(output.outputs[0].token_ids)
                events.append([now, i, total - seen[i]])
                seen[i] = total
        print(json.dumps(events), file=answers, flush=True)


if __name__ == "__main__":
    main()
