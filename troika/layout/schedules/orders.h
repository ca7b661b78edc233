// The passes of each rank in the published schedules, without messages: see schedule_table().
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "troika/layout/schedule.h"

namespace troika::layout {

// Sizes of a pipeline.
struct PipelineShape {
  int ranks = 1;          // of the pipeline axis
  int micro_batches = 1;  // of an optimizer step
  int chunks = 0;         // stages on each rank; 0: as many as the schedule wants
  int blocks = 0;         // of the model, which stages are made of; 0: not known

  int stages() const { return ranks * chunks; }
};

// One after another: each micro-batch goes forward and backward before the next one begins.
Schedule naive_order(const PipelineShape& shape);
// All forward passes, then all backward passes in reverse: Huang et al. 2019, arXiv 1811.06965,
// section 2.3.
Schedule gpipe_order(const PipelineShape& shape);
// PipeDream-Flush: Narayanan et al. 2021, arXiv 2006.09503, section 3.2.
Schedule one_forward_one_backward_order(const PipelineShape& shape);
// Stage s is on rank s mod ranks: Narayanan et al. 2021, arXiv 2104.04473, section 2.2.
Schedule interleaved_order(const PipelineShape& shape);
// Breadth-first, stages as interleaved: Lamy-Poirier 2023, arXiv 2211.05953.
Schedule breadth_first_order(const PipelineShape& shape);
// Qi et al. 2024, arXiv 2401.10241, section 2.
Schedule zb_h1_order(const PipelineShape& shape);
Schedule zb_h2_order(const PipelineShape& shape);

// Rank r of those below has stages r (its chunk 0) and 2 ranks - 1 - r (its chunk 1).

// Qi et al. 2024, arXiv 2401.10241, section 6; v-half and v-min: arXiv 2405.15362.
Schedule zb_v_order(const PipelineShape& shape);
Schedule v_half_order(const PipelineShape& shape);
Schedule v_min_order(const PipelineShape& shape);
// DeepSeek-AI 2025, github.com/deepseek-ai/DualPipe.
Schedule dualpipe_v_order(const PipelineShape& shape);

// Writes the passes of one rank with two chunks of a V, numbering micro-batches by itself. Passes
// on micro-batches that are no more are left out.
class VOrder {
 public:
  VOrder(const PipelineShape& shape, int rank);

  void forward(int chunk);
  void backward(int chunk);
  void backward_input(int chunk);
  // The forward pass of `chunk` beside the backward pass of the other one.
  void forward_beside_backward(int chunk);
  // The oldest weight part of the chunk, or of both, that is pending; nothing where there is none.
  void backward_weight(int chunk);
  void backward_weight();
  // All pending ones of the chunk.
  void rest_of_backward_weight(int chunk);

  bool has_forwards() const;
  std::vector<Action> take() { return std::move(actions_); }

 private:
  struct Chunk {
    int stage = 0;
    int forwards = 0;   // begun
    int backwards = 0;  // begun, whole ones or input parts
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
