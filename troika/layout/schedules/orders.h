// The passes of each rank in published schedules, without messages; see schedule_table().
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "troika/layout/schedules/schedule.h"

namespace troika::layout {

// Sizes of a pipeline.
struct PipelineShape {
  int ranks = 1;          // size of the pipeline axis
  int micro_batches = 1;  // per optimizer step
  int chunks = 0;         // stages per rank; 0: the schedule's default
  int blocks = 0;         // blocks of the model, which form the stages; 0: unknown

  int stages() const { return ranks * chunks; }
};

// One at a time: each micro-batch runs forward and backward before the next one begins.
Schedule naive_order(const PipelineShape& shape);
// All forward passes, then all backward passes in reverse: Huang et al. 2019, arXiv 1811.06965,
// section 2.3.
Schedule gpipe_order(const PipelineShape& shape);
// PipeDream-Flush: Narayanan et al. 2021, arXiv 2006.09503, section 3.2.
Schedule one_forward_one_backward_order(const PipelineShape& shape);
// The same with `warm_up` forward passes, by rank, before a rank's passes alternate, instead of the
// number of ranks that follow.
Schedule one_forward_one_backward_order(const PipelineShape& shape,
                                        const std::vector<int>& warm_up);
// Stage s is on rank s mod ranks: Narayanan et al. 2021, arXiv 2104.04473, section 2.2.
Schedule interleaved_order(const PipelineShape& shape);
// Breadth-first, stages as interleaved: Lamy-Poirier 2023, arXiv 2211.05953.
Schedule breadth_first_order(const PipelineShape& shape);
// Qi et al. 2024, arXiv 2401.10241, section 2.
Schedule zb_h1_order(const PipelineShape& shape);
Schedule zb_h2_order(const PipelineShape& shape);

// In the following schedules, rank r has stages r (chunk 0) and 2 ranks - 1 - r (chunk 1).

// Qi et al. 2024, arXiv 2401.10241, section 6; v-half and v-min: arXiv 2405.15362.
Schedule zb_v_order(const PipelineShape& shape);
Schedule v_half_order(const PipelineShape& shape);
Schedule v_min_order(const PipelineShape& shape);
// DeepSeek-AI 2025, github.com/deepseek-ai/DualPipe.
Schedule dualpipe_v_order(const PipelineShape& shape);

// Records the passes of one rank with two chunks of a V, and numbers the micro-batches. Passes
// beyond the last micro-batch are omitted.
class VOrder {
 public:
  VOrder(const PipelineShape& shape, int rank);

  void forward(int chunk);
  void backward(int chunk);
  void backward_input(int chunk);
  // Adds a forward pass of `chunk` that starts together with a backward pass of the other chunk.
  void forward_beside_backward(int chunk);
  // Adds the oldest pending weight part of the chunk, or of both chunks; nothing if none is
  // pending.
  void backward_weight(int chunk);
  void backward_weight();
  // Adds all pending weight parts of the chunk.
  void rest_of_backward_weight(int chunk);

  bool has_forwards() const;
  std::vector<Action> take() { return std::move(actions_); }

 private:
  struct Chunk {
    int stage = 0;
    int forwards = 0;   // started
    int backwards = 0;  // started, whole passes or input parts
  };
  struct Weight {
    int chunk = 0;
    int micro_batch = 0;
  };

  void add(ActionKind kind, int chunk, int micro_batch, bool joined = false);

  int micro_batches_;
  std::array<Chunk, 2> chunks_;
  std::vector<Weight> pending_;  // oldest first
  std::vector<Action> actions_;
};

}  // namespace troika::layout
