// Each snippet of README.md and docs/, in a scope with the names that the page assumes. The test is
// that they compile.
#include <torch/torch.h>
#include <troika/base/config.h>
#include <troika/troika.h>

using namespace troika;

namespace given {

std::shared_ptr<nn::Model> my_model();
const data::Dataset& dataset();
at::Tensor tensor();

}  // namespace given

namespace tutorial {

static const torch::nn::Sequential my_model{torch::nn::Linear(3, 2)};
static const auto &training_data = given::dataset(), &validation_data = given::dataset(),
                  &test_data = given::dataset();
#include "tutorial-1.inc"

}  // namespace tutorial

namespace callbacks {

void own_callback(train::Trainer& trainer) {
#include "callbacks-1.inc"
}

}  // namespace callbacks

namespace lora {

void adapters() {
#include "lora-1.inc"
}

}  // namespace lora

namespace communication {

void groups() {
  const auto tensor = given::tensor();
#include "communication-1.inc"
}

void edges(const comm::Group& world, const at::Tensor& tensor) {
#include "communication-2.inc"
}

}  // namespace communication

namespace data_parallelism {

void own_loop(const std::shared_ptr<nn::Model>& model, const comm::Group& group,
              const at::Tensor& loss, const std::unique_ptr<optim::FlatOptimizer>& optimizer) {
#include "data-parallelism-1.inc"
}

}  // namespace data_parallelism

namespace diloco {

void own_loop(const std::shared_ptr<nn::Model>& model, const comm::Group& group,
              const at::Tensor& loss, const std::unique_ptr<optim::FlatOptimizer>& optimizer) {
#include "diloco-1.inc"
}

}  // namespace diloco

namespace pipelines {

void step(const std::shared_ptr<nn::Model>& model, const comm::Group& world,
          const at::Tensor& inputs, const at::Tensor& targets) {
#include "pipelines-1.inc"
}

}  // namespace pipelines

namespace tensor_parallelism {

void step(const comm::Group& group, const nn::Tensors& batch) {
  const auto &tokens = batch[0], &targets = batch[1];
#include "tensor-parallelism-1.inc"
}

void overlap(const std::shared_ptr<nn::Model>& model, const std::vector<nn::Tensors>& batches,
             const std::function<at::Tensor(nn::Model&, const nn::Tensors&)>& loss){
#include "tensor-parallelism-2.inc"
}

parallel::SplitTable own_rules() {
#include "tensor-parallelism-3.inc"
  return rules;
}

}  // namespace tensor_parallelism

namespace context_parallelism {

void step(const comm::Group& world, const nn::Tensors& batch) {
  const auto &tokens = batch[0], &targets = batch[1];
#include "context-parallelism-1.inc"
}

}  // namespace context_parallelism

namespace precision_and_memory {

void blocks() {
#include "precision-and-memory-1.inc"
}

struct TwoTowers : torch::nn::Module {
  torch::nn::Linear left{5, 8}, right{3, 8}, mixer{16, 8}, head{8, 1};
};

void module_as_blocks() {
  const auto net = std::make_shared<TwoTowers>();
#include "precision-and-memory-2.inc"
}

}  // namespace precision_and_memory

namespace metrics_and_logs {

void metric(const comm::Group& group, const at::Tensor& logits, const at::Tensor& targets) {
  using namespace metrics;
#include "metrics-and-logs-1.inc"
}

class OwnTask : public train::Task {
#include "metrics-and-logs-2.inc"
};

}  // namespace metrics_and_logs

namespace trainer_options {

static const std::shared_ptr<nn::Model> model = given::my_model();
static const auto &training = given::dataset(), &validation = given::dataset();
#include "trainer-1.inc"

}  // namespace trainer_options

namespace trainer_calls {

void test_and_predict(train::Trainer& trainer, train::Task& task, const comm::Group& group) {
  const auto &test_set = given::dataset(), &data = given::dataset();
#include "trainer-2.inc"
}

}  // namespace trainer_calls

namespace gathered_outputs {

constexpr int64_t kWidth = 8;
double retrieval(const at::Tensor& outputs);
#include "trainer-3.inc"

}  // namespace gathered_outputs

namespace data_module {

struct Splits {
  const data::Dataset &training, &validation;
};
void download(const std::string& name);
std::shared_ptr<Splits> read(const std::string& name);

void own_module(train::Trainer& trainer, train::Task& task) {
  static std::shared_ptr<Splits> digits_;
#include "trainer-4.inc"
}

}  // namespace data_module

namespace batches {

struct RatingsModel : torch::nn::Module {
  at::Tensor forward(const at::Tensor& users, const at::Tensor& films);
};

void own_data_set(const std::shared_ptr<RatingsModel>& model) {
  static at::Tensor users_, films_, stars_, weights_;
#include "trainer-5.inc"
}

}  // namespace batches

namespace recipe {

class OwnTask : public train::Task {
#include "trainer-6.inc"
};

}  // namespace recipe

namespace saving {

void save(train::Trainer& trainer, train::Task& task, const data::Dataset& training,
          const data::Dataset& validation) {
#include "trainer-7.inc"
}

}  // namespace saving

namespace loading {

void load(const std::shared_ptr<torch::nn::Module>& my_module, train::TrainOptions& options) {
#include "trainer-8.inc"
}

}  // namespace loading
