// `summary.json`: the results of a finished, stopped or failed run, for people and scripts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace troika::observe {

// Metric names of every fit(): the loss of a step, the loss of an epoch, and the loss and accuracy
// of a validation if its steps add them.
inline const std::string kTrainLoss = "train/loss";
inline const std::string kEpochLoss = "train/epoch_loss";
inline const std::string kValidationLoss = "validation/loss";
inline const std::string kValidationAccuracy = "validation/accuracy";

// The version of this library, e.g. "0.1.0".
std::string troika_version();

// The time of one phase of a step (see step_times.h), or of the whole "step".
struct PhaseTime {
  std::string phase;
  std::vector<double> milliseconds;  // the median over all steps, one per rank
};

// A bound on the machine's speed in a step (Williams, Waterman and Patterson, "Roofline", CACM
// 52(4), 2009), measured by the callback Throughput. Values are sums over all ranks, except the
// bound.
struct Roofline {
  double flops_per_second = 0;  // peak, of matrix products
  double bytes_per_second = 0;  // peak memory bandwidth
  struct Work {
    std::string phase;  // see PhaseTime
    double flops = 0;   // of products, including recomputed ones
    double bytes = 0;   // of products: operands and results, each once; or of an optimizer step
    // A lower bound on the time: for each product, the longer of computing and moving its bytes.
    // The bound of the slowest rank.
    double bound_milliseconds = 0;
  };
  std::vector<Work> work;  // of one micro-batch, and of the optimizer
};

// The fields are the keys of the file. NaN and infinities become null: JSON has neither, and a
// missing measurement must not look like 0.
struct RunSummary {
  std::string name = {};
  std::string status = {};  // "finished", "stopped" or "failed"
  int64_t world_size = 1;
  int64_t steps = 0;    // optimizer steps
  int64_t samples = 0;  // trained on, over all ranks
  int64_t epochs = 0;   // completed epochs
  double train_loss = std::numeric_limits<double>::quiet_NaN();
  double validation_loss = std::numeric_limits<double>::quiet_NaN();
  double validation_accuracy = std::numeric_limits<double>::quiet_NaN();  // in [0, 1]
  double samples_per_second = std::numeric_limits<double>::quiet_NaN();   // over all ranks
  double median_step_milliseconds = std::numeric_limits<double>::quiet_NaN();
  std::vector<PhaseTime> phase_milliseconds = {};  // a JSON object; empty: not measured
  // For a pipeline: the share of a step's passes in which each rank is idle; empty: no pipeline.
  std::vector<double> bubble = {};
  std::optional<Roofline> roofline = {};
  double seconds = std::numeric_limits<double>::quiet_NaN();  // wall time of the run
  std::vector<int64_t> peak_resident_bytes = {};              // one per rank
  // The peak bytes of tensors in training steps (base/memory.h), and their prediction by
  // check_memory_of(), one per rank each. Empty: not counted, or not predicted.
  std::vector<int64_t> peak_tensor_bytes = {};
  std::vector<int64_t> predicted_tensor_bytes = {};
  std::string torch_version = {};
  std::string troika_version = observe::troika_version();
  std::string run_folder = {};
  std::string checkpoint = {};       // path of the last checkpoint; empty: none was written
  std::string best_checkpoint = {};  // by checkpoint.monitor; empty: none
  // The latest values of all metrics that are the same on all ranks.
  std::map<std::string, double> metrics = {};
  std::string failure = {};  // of a failed run: the error on rank 0
};

// Writes the file whole or not at all.
void write_summary(const std::filesystem::path& path, const RunSummary& summary);

// Reads a file of write_summary(). Throws Error(usage) naming the file and the error in it.
RunSummary read_summary(const std::filesystem::path& path);

// The peak resident memory of this process so far (VmHWM of proc(5)).
int64_t peak_resident_bytes();

// The median of the added values, in bounded memory (40 KiB). Exact for the first kExact values.
// Beyond them, counts values in bins whose bounds grow by 1 %, so the median is within 0.5 % (the
// sketch of Masson, Rim and Lee, VLDB 2019, arXiv 1908.10693, section 2). Values are then clamped
// to [1e-7, 1e9].
class Median {
 public:
  static constexpr size_t kExact = 1000;

  // `value` must not be NaN.
  void add(double value);
  // NaN before the first value; the mean of the middle two for an even number of values.
  double value() const;

 private:
  // The value at this position in sorted order.
  double at(int64_t place) const;

  std::vector<double> values_;  // the first values; empty once bins are in use
  std::vector<int64_t> bins_;
  int64_t count_ = 0;
};

}  // namespace troika::observe
