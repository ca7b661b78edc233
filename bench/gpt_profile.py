"""Profiles of GPTs of given sizes, from the published rates of a device (docs/simulate.md). The bytes of activations are
those of Korthikanti et al. 2022 (arXiv 2205.05198, section 4.1), for 16-bit activations and s tokens, b samples, width h
and a heads: s b h (34 + 5 a s / h) of a layer, of which a tensor axis divides 24 + 5 a s / h."""

# A100 of 80 GB by NVIDIA's data sheet: bfloat16 FLOP/s of matrix products, bytes a second of its memory, bytes.
A100 = {"flops": 312e12, "bandwidth": 2.039e12, "memory_bytes": 80 * 2**30}
BYTES_OF_PARAMETER = 4
# Reads and writes of a saved byte by the operators that are not matrix products, in each pass.
TRAFFIC_FORWARD, TRAFFIC_BACKWARD = 2, 3
# Bytes that Adam reads and writes for a parameter: 4 each of the gradient (read), and of the parameter and two states (both).
TRAFFIC_OPTIMIZER = 28


def block(name, products, elements, device, efficiency, **values):
    """`products`: FLOPs of matrix products in the forward pass, and in both parts of the backward pass. `elements`: saved
    bytes of other operators that a tensor axis divides, and that only sequence parallelism does."""
    cut, tokens = elements
    matrix = [flops / (device["flops"] * efficiency) for flops in products]
    passes = TRAFFIC_FORWARD + TRAFFIC_BACKWARD
    seconds = sum(matrix) + passes * (cut + tokens) / device["bandwidth"]
    token_share = passes * tokens / device["bandwidth"] / seconds
    saved = cut + tokens
    tensor = {"time_share": 1 - token_share, "token_time_share": token_share, "saved_share": cut / saved,
              "token_saved_share": tokens / saved, **values.pop("tensor")}
    return {"name": name, "forward_seconds": matrix[0] + TRAFFIC_FORWARD * saved / device["bandwidth"],
            "backward_input_seconds": matrix[1] + TRAFFIC_BACKWARD * saved / device["bandwidth"],
            "backward_weight_seconds": matrix[2], "saved_bytes": saved, **values, "tensor": tensor}


def gpt_profile(layers, hidden, heads, vocabulary, tokens, micro_batch, device, efficiency):
    """Returns a profile as JSON data. `efficiency` is the share of the published rate that matrix products reach."""
    b, s, h, v = micro_batch, tokens, hidden, vocabulary
    made = lambda name, products, elements, **values: block(name, products, elements, device, efficiency, **values)
    activation = 2 * s * b * h
    dense, attention = 24 * b * s * h * h, 4 * b * s * s * h
    parameters = 12 * h * h + 13 * h
    whole = (v + s) * h
    blocks = [made("embedding", (0, 0, 0), (0, s * b * h), output_bytes=activation,
                   parameter_bytes=BYTES_OF_PARAMETER * whole,
                   tensor={"parameter_share": v / (v + s), "forward_sums": 1, "backward_gathers": 1,
                           "sum_bytes": activation})]
    for i in range(layers):
        blocks.append(made(f"layer{i}", (dense + attention, dense + 2 * attention, dense),
                           (24 * s * b * h + 5 * heads * s * s * b, 10 * s * b * h), output_bytes=activation,
                           parameter_bytes=BYTES_OF_PARAMETER * parameters,
                           tensor={"units": heads, "parameter_share": 1 - 6 * h / parameters, "forward_sums": 2,
                                   "backward_sums": 2, "backward_gathers": 2, "sum_bytes": activation}))
    logits = 2 * b * s * h * v
    blocks.append(made("head", (logits, logits, logits), (4 * b * s * v, 4 * b * s * h), output_bytes=0,
                       parameter_bytes=BYTES_OF_PARAMETER * v * h,
                       tensor={"parameter_share": 1, "backward_sums": 1, "sum_bytes": activation}))
    return {"model": "gpt", "device_flops": device["flops"], "precision": "bf16-mixed", "micro_batch": b,
            "optimizer_factor": 2.5,  # 18 bytes for a parameter with its gradient, as in Megatron-LM
            "optimizer_bytes_per_second": device["bandwidth"] * BYTES_OF_PARAMETER / TRAFFIC_OPTIMIZER, "blocks": blocks}
