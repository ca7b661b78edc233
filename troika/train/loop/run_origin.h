// The origin of a run: the checkpoint that it resumes from, or a new beginning.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "troika/checkpoint/reader.h"
#include "troika/train/engine/engine.h"
#include "troika/train/loop/epochs.h"
#include "troika/train/loop/fit_clock.h"
#include "troika/train/loop/run_setup.h"
#include "troika/train/loop/train_log.h"
#include "troika/train/run/fit_context.h"

namespace troika::train {

// The parts of a run that a checkpoint's state is loaded into.
struct ResumedParts {
  Epochs& epochs;
  FitClock& clock;
  FitContext& context;
  TrainLog& log;
  Engine& engine;
};

// Returns the rank of the saved mesh whose random state `rank` of the mesh `now` takes over; empty
// if it is to seed its generator. Ranks of a context and a tensor axis compute the same samples, so
// all of them take the same state, or none.
std::optional<int> source_of_random(const layout::Mesh& saved, const layout::Mesh& now, int rank);

// The constructor and load() are called by all ranks, and block.
class RunOrigin {
 public:
  // Seeds the random generators. Opens the checkpoint that trainer.ckpt_path names; without one,
  // loads the weights that model.weights names. Chooses the run's id and link bandwidths. Must
  // precede the split of any group. Throws Error(usage) for a checkpoint of weights alone, and for
  // an earlier format. `setup` must outlive this object.
  explicit RunOrigin(const RunSetup& setup);

  // The id of the run, the same on all ranks, in its checkpoints and beside its logs: the
  // checkpoint's, if the logs in the folder belong to the same run, otherwise a new id.
  const std::string& id() const { return id_; }
  // The result of MeshGroups::links(); undefined with one rank. If the ranks are those of the
  // checkpoint, it is the checkpoint's, so that the same algorithms are chosen and sums have the
  // same bits.
  const at::Tensor& links() const { return links_; }

  // Loads the state of the checkpoint, if any, and closes it. Returns its folder; empty for a new
  // run. If it throws on any rank, all ranks throw, with the module whole.
  std::filesystem::path load(const ResumedParts& parts);
  // Replaces the state of a run that has begun by that of a checkpoint. The times stay
  // those of this run, because its clock goes on. For a group of one rank.
  void take(const std::filesystem::path& checkpoint, const ResumedParts& parts);

 private:
  // The folder of the checkpoint to resume from, or empty; the same on all ranks.
  std::filesystem::path find_checkpoint() const;
  // Opens this rank's part of the checkpoint.
  void open(const std::filesystem::path& checkpoint);
  std::string choose_id() const;
  void choose_links();
  // Loads the state without communication. Returns a function that all ranks must call next (see
  // Engine::load()).
  std::function<void()> load_alone(const ResumedParts& parts) const;
  // Throws Error(usage) if this run cannot continue the checkpoint's samples and random numbers.
  void require_same_course(const TrainProgress& at) const;
  void load_random(int64_t samples, at::Device device) const;
  void report(const ResumedParts& parts) const;

  const RunSetup& setup_;
  std::optional<checkpoint::CheckpointReader> saved_;  // until load()
  std::string id_;
  at::Tensor links_;
};

}  // namespace troika::train
