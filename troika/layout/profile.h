// Measured times and bytes of a model's blocks and of the links between devices, as plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "troika/layout/cluster.h"

namespace troika::layout {

// The bytes of a block that a rank of a tensor axis has, as ProfiledBlock and BlockInStage say.
// They contain the tensors of the sums over the axis.
struct RankBytes {
  double saved_bytes = 0;
  double workspace_bytes = 0;
  double sent_workspace_bytes = 0;
  double weight_saved_share = 0.5;
  double weight_workspace_bytes = 0;
  double weight_input_bytes = 0;
  double weight_output_bytes = 0;
  double weight_gradient_bytes = 0;
  double input_workspace_bytes = 0;

  bool operator==(const RankBytes&) const = default;
};

// The parts of a block that t ranks of a tensor axis divide (docs/tensor-parallelism.md). Shares
// are of the block's numbers, from 0 to 1; a rank has 1/t of them, and all of the rest.
struct TensorCut {
  int units = 0;   // t must divide them, such as heads of attention; 0: any t
  int tokens = 0;  // with sequence parallelism, t must divide them; 0: any t
  double time_share = 0;
  double parameter_share = 0;
  double saved_share = 0;  // of saved_bytes and workspace_bytes, if no bytes are counted
  // Shares that only sequence parallelism divides, beside those above: norms, dropout and sums of
  // residuals, of which each rank then has some of the tokens.
  double token_time_share = 0;
  double token_saved_share = 0;
  bool cuts_output = false;  // whether a rank's output is a part of the block's
  // Sums over the ranks in each pass, all of the same bytes. With sequence parallelism each is a
  // reduce-scatter and an all-gather.
  int forward_sums = 0;
  int backward_sums = 0;
  // With sequence parallelism, the gathers of as many bytes in a backward pass beyond those of its
  // sums, such as those of inputs that it gathers again.
  int backward_gathers = 0;
  double sum_bytes = 0;
  // The share of the block's backward_weight that computes beside the sums of a backward pass in
  // one part, and with sequence parallelism the share of backward_input beside backward_gathers. A
  // rank has 1/t of both, an equal part beside each.
  double weight_share_beside_sums = 0;
  double input_share_beside_gathers = 0;
  // The bytes of a rank of an axis of `counted_ranks`, without and with sequence parallelism; 0:
  // they are not counted, and the shares of saved bytes say what a rank has.
  int counted_ranks = 0;
  RankBytes of_rank = {}, of_rank_with_tokens = {};

  bool operator==(const TensorCut&) const = default;
};

// The parts of a block that c ranks of a context axis divide: each has 1/c of the tokens of every
// sample (docs/context-parallelism.md). Shares are of the block's numbers, from 0 to 1.
struct ContextCut {
  int tokens = 0;              // 2 c must divide them; 0: any c
  int heads = 0;               // method all_to_all: c must divide them; 0: any c
  double time_share = 0;       // of times: a rank has 1/c of it, and all of the rest
  double workspace_share = 0;  // the same for workspace_bytes
  double saved_bytes = 0;      // that all ranks together keep; each has 1/c of them
  // The part of the block's times in which it computes attention, beside which messages of method
  // ring are under way.
  double attention_share = 0;
  double pair_bytes = 0;           // of the keys and values of all tokens
  double pair_gradient_bytes = 0;  // of their gradients, as a ring sends them
  // Method all_to_all: the number of its exchanges in each pass, and the bytes of all their
  // tensors, with all tokens.
  int exchanges = 0;
  double exchanged_bytes = 0;

  bool operator==(const ContextCut&) const = default;
};

// Bytes of a block that depend on its stage and on what is recomputed there.
struct BlockInStage {
  double fixed_bytes = 0;             // of buffers, and of parameters that are not trained
  double borrowed_bytes = 0;          // of trained parameters of the first block that it uses, too
  double recomputed_saved_bytes = 0;  // kept by the block if it is recomputed, beside its inputs
  // The workspace if the block ends a stage whose output another stage takes. It lacks the gradient
  // of the output. If 0, the workspace is workspace_bytes.
  double sent_workspace_bytes = 0;
  // If a backward pass has two parts: the bytes that its second part needs after the first one,
  // saved ones and gradients, divided by saved_bytes; and what it takes beyond these. The share
  // does not count the block's input and the gradient of its output, which are the next two
  // numbers; 0: the second part does not need them.
  double weight_saved_share = 0.5;
  double weight_workspace_bytes = 0;
  double weight_input_bytes = 0;
  double weight_output_bytes = 0;
  double weight_gradient_bytes = 0;  // the gradients in weight_saved_share
  // The bytes that the first part takes beyond saved_bytes and the gradient of the block's output.
  // If 0, it takes workspace_bytes.
  double input_workspace_bytes = 0;

  bool operator==(const BlockInStage&) const = default;
};

// All numbers are those of one micro-batch on one device.
struct ProfiledBlock {
  std::string name;
  std::string layer = {};  // a description; may be empty

  // Seconds, means over steps.
  double forward = 0;
  double backward_input = 0;   // the gradients of the block's inputs
  double backward_weight = 0;  // the gradients of its parameters
  // Standard deviation of the sum of these times over steps, divided by their sum.
  double spread = 0;

  double output_bytes = 0;     // of the output, which later blocks read
  double saved_bytes = 0;      // kept from the forward pass until the backward pass
  double parameter_bytes = 0;  // the gradients take the same number of bytes
  double workspace_bytes = 0;  // in use only while a pass of the block runs
  BlockInStage in_stage = {};

  // Whether the block computes outputs and loss together (nn::Model::has_output_layer()). Its stage
  // does not split backward passes.
  bool has_output_layer = false;

  // Nothing: every rank of a tensor axis computes and holds the whole block.
  std::optional<TensorCut> tensor = {};
  // Nothing: every rank of a context axis computes the block for all tokens.
  std::optional<ContextCut> context = {};

  double backward() const { return backward_input + backward_weight; }
  double seconds() const { return forward + backward(); }
  bool operator==(const ProfiledBlock&) const = default;
};

struct ProfiledModel {
  std::string name = {};
  int64_t parameters = 0;  // their number; 0: unknown

  bool operator==(const ProfiledModel&) const = default;
};

struct MeasuredLink {
  Link link = {};     // unknown if its bandwidth is 0
  double spread = 0;  // standard deviation of the bandwidth, divided by the bandwidth

  bool operator==(const MeasuredLink&) const = default;
};

// The samples of a micro-batch on a rank.
struct ProfiledBatches {
  double bytes = 0;         // as the data set gives them
  double placed_bytes = 0;  // of their copies in another type or order, which passes read
  double prefetched = 0;    // the number of micro-batches that are loaded ahead

  bool operator==(const ProfiledBatches&) const = default;
};

// How the passes of a step differ from passes that run alone, one micro-batch after another, and
// what they read.
struct PassesInStep {
  // The share of communication that computing hides if both take place at the same time, from -1 to
  // 1. Below 1 where communication takes processors or memory bandwidth from computing; below 0
  // where both together take longer than one after the other.
  double overlap = 1;
  // The time of the passes of a step's first micro-batch, divided by the blocks' times; at least 1.
  // Above 1 where an optimizer step leaves none of the passes' memory in caches.
  double first_micro_batch_factor = 1;
  ProfiledBatches batches = {};

  bool operator==(const PassesInStep&) const = default;
};

// Text form: JSON.
//
//   {
//     "model": "mlp", "parameters": 100, "device": "Xeon", "device_flops": 1e11,
//     "precision": "32", "micro_batch": 32, "splits_backward": true, "optimizer_factor": 2,
//     "optimizer_bytes_per_second": 2e9, "gather_bytes_per_second": 5e9, "overlap": 1,
//     "first_micro_batch_factor": 1.1,
//     "batches": {"bytes": 1024, "placed_bytes": 0, "prefetched": 2},
//     "links": {"network": {"latency": 5e-06, "bandwidth": 1.25e+10, "spread": 0.02}},
//     "blocks": [
//       {"name": "stem", "forward_seconds": 0.001, "backward_input_seconds": 0.0005,
//        "backward_weight_seconds": 0.0006, "spread": 0.01, "output_bytes": 4096,
//        "saved_bytes": 8192, "parameter_bytes": 400, "workspace_bytes": 0,
//        "fixed_bytes": 0, "borrowed_bytes": 0,
//        "recomputed_saved_bytes": 0, "sent_workspace_bytes": 0,
//        "weight_saved_share": 0.5, "weight_workspace_bytes": 0, "weight_input_bytes": 0,
//        "weight_output_bytes": 0, "weight_gradient_bytes": 0, "input_workspace_bytes": 0,
//        "has_output_layer": false,
//        "tensor": {"units": 4, "tokens": 64, "time_share": 0.9, "parameter_share": 0.95,
//                   "saved_share": 0.7, "token_time_share": 0.1, "token_saved_share": 0.3,
//                   "cuts_output": false, "forward_sums": 2, "backward_sums": 2,
//                   "backward_gathers": 2, "sum_bytes": 4096, "weight_share_beside_sums": 0.6,
//                   "input_share_beside_gathers": 0.4, "counted_ranks": 2,
//                   "of_rank": {"saved_bytes": 4096, "workspace_bytes": 0, ...},
//                   "of_rank_with_tokens": {"saved_bytes": 4096, "workspace_bytes": 0, ...}},
//        "context": {"tokens": 64, "heads": 4, "time_share": 1, "workspace_share": 0.8,
//                    "saved_bytes": 8192, "attention_share": 0.2, "pair_bytes": 8192,
//                    "pair_gradient_bytes": 8192, "exchanges": 4, "exchanged_bytes": 16384}}],
//     "edges": [["stem", "head"]]
//   }
//
// `of_rank` and `of_rank_with_tokens` have the keys of RankBytes.
// `blocks`, and the name, the times and the bytes of each block except for those from
// workspace_bytes on are required; in `tensor` and `context`, nothing is. Without
// weight_saved_share, it is 0.5. A missing number is 0, a missing condition false. Without `edges`,
// each block reads the output of the one before it.
struct Profile {
  ProfiledModel model = {};
  std::string device = {};       // on which the times were measured
  double device_flops = 0;       // its floating-point operations per second; 0: unknown
  std::string precision = "32";  // as trainer.precision
  double micro_batch = 1;        // samples; 1 if the file does not say
  // Whether backward_input and backward_weight are measured apart; otherwise they are equal parts
  // of a whole.
  bool splits_backward = true;
  // Bytes of the optimizer's states per byte of parameters.
  double optimizer_factor = 0;
  // Bytes of parameters that the optimizer updates per second; 0: a step takes no time.
  double optimizer_bytes_per_second = 0;
  // Bytes of parameters for which ZeRO's all-gathers take a second longer than their messages on
  // the links, for copies in memory; 0: no longer.
  double gather_bytes_per_second = 0;
  PassesInStep in_step = {};
  MeasuredLink group = {}, host = {}, network = {};  // as in Cluster
  std::vector<ProfiledBlock> blocks = {};
  // Pairs of indices into `blocks`: the second block reads the output of the first. Empty: a chain
  // in the order of `blocks`.
  std::vector<std::pair<size_t, size_t>> edges = {};

  // Reads the text form above, or a graph.txt of PipeDream (github.com/msr-fiddle/pipedream), which
  // is also the form of DAPPLE's profiles (github.com/AlibabaPAI/DAPPLE). In a graph, half of each
  // backward time counts for inputs and half for weights, and Input layers get no times and no
  // bytes. `name` is the file's name, for errors. Throws Error(usage) with the line
  // and the field for other text, an unknown, missing or repeated key, a number that is negative or
  // beyond its limit, shares whose sum is above 1, an unknown precision, a number of parameters
  // that does not fit their bytes, a block name that is repeated or that a layout string of stages
  // cannot have, blocks that take no time, an edge of an unknown block, and edges that form a
  // cycle.
  static Profile parse(std::string_view text, std::string_view name);
  std::string text() const;

  // Whether a pass of one of the blocks does.
  bool takes_time() const;
  // Returns the seconds that an all-gather of so many bytes takes longer than its messages.
  double gather_seconds(double bytes) const {
    return gather_bytes_per_second > 0 ? bytes / gather_bytes_per_second : 0;
  }
  // Returns for each block the blocks that read its output. If `edges` is empty, the blocks form a
  // chain.
  std::vector<std::vector<size_t>> readers() const;
  // Returns the indices of the blocks in topological order: each block comes after the blocks that
  // it reads. Ties are in the order of `blocks`.
  std::vector<size_t> topological_order() const;

  bool operator==(const Profile&) const = default;
};

// Reads a graph.txt; Profile::parse() calls it for text that does not begin with a brace.
Profile parse_pipedream_graph(std::string_view text, std::string_view name);

}  // namespace troika::layout
