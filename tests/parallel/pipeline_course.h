// Steps of a pipeline on the ranks of a group, and the oracle: steps of one process that
// accumulates the same micro-batches.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "troika/comm/group.h"
#include "troika/nn/model.h"
#include "troika/parallel/pipeline/pipeline.h"

namespace troika::parallel {

// A model in float64 with fixed weights, and data for it.
struct PipelineCase {
  std::shared_ptr<nn::Model> model;
  at::Tensor inputs, targets;
  at::Tensor captions = {};  // the model's second input, if it has one
  Pipeline::Loss loss;
  int64_t first_sample = 0;  // its number, for dropout
};

// Splits a case's samples into micro-batches. Each is weighted by the number of its targets that
// are not ignored, and has the dropout masks of its samples.
class CaseBatches : public MicroBatchSource {
 public:
  CaseBatches(const PipelineCase& of, int micro_batches);

  nn::Tensors inputs(int micro_batch) override;
  at::Tensor loss(int micro_batch, nn::Tensors outputs) override;
  at::Tensor root(int micro_batch, const at::Tensor& loss) override;
  std::shared_ptr<const nn::SampleKeys> keys(int micro_batch) override;
  double weight(int micro_batch) const;

 private:
  std::vector<at::Tensor> inputs_, targets_, captions_;
  std::vector<std::shared_ptr<const nn::SampleKeys>> keys_;
  Pipeline::Loss loss_;
};

// "mlp", "resnet20" (batch norm in evaluation mode), "resnet20 in training", "gpt",
// "gpt untied", "gpt with dropout", "gpt with ignored targets", "unet", "s2vt", "skips" (tensors
// that skip stages, one of them of integers, and a parameter that the first and the last block use)
// with `samples` samples. Each call makes a new model.
PipelineCase pipeline_case(const std::string& name, int64_t samples, int seed = 0);

// The same for several threads at a time, under a lock, because all models take their initial
// values from one generator.
PipelineCase pipeline_case_alone(const std::string& name, int64_t samples, int seed = 0);

struct PipelineResult {
  std::map<std::string, at::Tensor> gradients;
  double loss = 0;
  double norm = 0;  // of all gradients
};

// Accumulates `micro_batches` micro-batches in one process.
PipelineResult accumulate(const PipelineCase& of, int micro_batches);
// Trains a step in a pipeline. Expects the oracle's gradients of each rank's parameters, the
// oracle's loss as the sum over the ranks of a replica, and the oracle's gradient norm.
void expect_oracle(const comm::Group& world, const std::string& mesh, const std::string& model,
                   int64_t samples, const PipelineOptions& options);

}  // namespace troika::parallel
