// `summary.json`: what a finished or failed run says about itself, for a person and for a script.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace troika::observe {

// Names of metrics of every fit(): the loss of a step, of an epoch, and of a validation whose steps
// gave any.
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

// A bound of what the machine can do in a step (Williams, Waterman and Patterson, "Roofline", CACM
// 52(4), 2009), measured by callback Throughput. Sums over all ranks, but the bound.
struct Roofline {
  double flops_per_second = 0;  // of matrix products
  double bytes_per_second = 0;  // of memory
  struct Work {
    std::string phase;  // of PhaseTime
    double flops = 0;   // of products, also those made again
    double bytes = 0;   // operands and results of products, each once; of the optimizer's step
    // The least time of them: of each product the longer of computing and of moving its bytes. The
    // slowest rank's.
    double bound_milliseconds = 0;
  };
  std::vector<Work> work;  // of one pass, and of the optimizer
};

// The fields are the keys of the file. A number that is NaN or infinite becomes null: JSON has
// neither, and a run that measured nothing must not look like one that measured 0.
struct RunSummary {
  std::string name = {};
  std::string status = {};  // "finished", "stopped" or "failed"
  int64_t world_size = 1;
  int64_t steps = 0;    // optimizer steps
  int64_t samples = 0;  // trained on, over all ranks
  int64_t epochs = 0;   // complete ones
  double train_loss = std::numeric_limits<double>::quiet_NaN();
  double validation_loss = std::numeric_limits<double>::quiet_NaN();
  double validation_accuracy = std::numeric_limits<double>::quiet_NaN();  // in [0, 1]
  double samples_per_second = std::numeric_limits<double>::quiet_NaN();   // over all ranks
  double median_step_milliseconds = std::numeric_limits<double>::quiet_NaN();
  std::vector<PhaseTime> phase_milliseconds = {};  // an object of phases; empty: not measured
  std::optional<Roofline> roofline = {};
  double seconds = std::numeric_limits<double>::quiet_NaN();  // wall time of the run
  std::vector<int64_t> peak_resident_bytes = {};              // one per rank
  // Bytes of tensors while training steps run (base/memory.h), by rank, and what predict_memory()
  // said of it before; empty and 0: not counted, not predicted.
  std::vector<int64_t> peak_tensor_bytes = {};
  int64_t predicted_tensor_bytes = 0;
  std::string torch_version = {};
  std::string troika_version = observe::troika_version();
  std::string run_folder = {};
  std::string checkpoint = {};       // path of the last one; empty: none was written
  std::string best_checkpoint = {};  // by checkpoint.monitor; empty: none
  // The latest of every metric that is the same on all ranks: none that was not computed.
  std::map<std::string, double> metrics = {};
  std::string failure = {};  // of a failed run: what ended it on rank 0
};

// Writes the file whole or not at all.
void write_summary(const std::filesystem::path& path, const RunSummary& summary);

// Reads what write_summary() wrote. Throws Error(usage) naming the file and what is wrong with it.
RunSummary read_summary(const std::filesystem::path& path);

// The most memory this process has had resident so far (VmHWM of proc(5)).
int64_t peak_resident_bytes();

// The median of the values added, in bounded memory (40 KiB). The first kExact values are kept, and
// their median is exact. From then on values are counted in bins whose bounds grow by 1 %, so that
// the median is within 0.5 % (the sketch of Masson, Rim and Lee, VLDB 2019, arXiv 1908.10693,
// section 2); values below 1e-7 count as 1e-7 then, those above 1e9 as 1e9.
class Median {
 public:
  static constexpr size_t kExact = 1000;

  // Not NaN, which has no place in an order.
  void add(double value);
  // NaN before the first value; the mean of the middle two of an even number.
  double value() const;

 private:
  // The value at this place in the order of all.
  double at(int64_t place) const;

  std::vector<double> values_;  // the first ones; empty once there are bins
  std::vector<int64_t> bins_;
  int64_t count_ = 0;
};

}  // namespace troika::observe
