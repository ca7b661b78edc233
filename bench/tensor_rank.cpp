// One rank of bench/tensor: steps of a model that is cut over the ranks, on command.
//
// tensor_rank MODEL CUT TOKENS, with the variables of torchrun. MODEL is gpt or llama: 4 layers of
// width 1024 with 16 heads, 8192 words, 2 samples of TOKENS tokens. CUT is tensor, sequence (with
// sequence parallelism) or context (by tokens, with a ring). A step is a forward and a backward
// pass, with the average of gradients over a context axis and without an optimizer. Reads commands
// from the standard input, one per line: "sync N" runs N steps of all ranks together, "quiet N" the
// same steps without communication. Answers each command with a line of JSON: the seconds of every
// step.
#include <memory>
#include <optional>
#include <string>

#include "bench/rank_commands.h"
#include "troika/comm/end_with.h"
#include "troika/comm/local/lone_rank.h"
#include "troika/comm/world/mesh_groups.h"
#include "troika/comm/world/world.h"
#include "troika/compat/tensor_memory.h"
#include "troika/nn/model.h"
#include "troika/nn/output_layer.h"
#include "troika/nn/zoo.h"
#include "troika/parallel/context/context_parallel.h"
#include "troika/parallel/data_parallel.h"
#include "troika/parallel/tensor/tensor_parallel.h"

namespace {

constexpr int64_t kSamples = 2;

troika::nn::ModelOptions model_of(const std::string& name, int64_t tokens) {
  if (name != "gpt" && name != "llama") {
    throw troika::Error("bench", troika::ErrorKind::usage,
                        {.what = "which model", .got = name, .expected = "gpt or llama"});
  }
  return {.name = name,
          .vocab_size = 8192,
          .context = tokens,
          .layers = 4,
          .heads = 16,
          .width = 1024,
          .tie_word_embeddings = false};
}

class CutModel {
 public:
  // Gradients of a context axis are averaged over `replicas`, unless that is a null pointer.
  CutModel(const troika::nn::ModelOptions& options, const std::string& cut,
           const troika::comm::Group& axis, const troika::comm::Group* replicas)
      : model_(troika::nn::make_model(options)),
        tokens_(troika::nn::example_input(options, kSamples)),
        loss_(std::make_shared<troika::nn::OutputLoss>(
            troika::nn::OutputLoss{at::randint(options.vocab_size, tokens_.sizes(), at::kLong)})) {
    const auto table = troika::parallel::split_table(options);
    if (cut == "context") {
      context_.emplace(*model_, axis, table);
      if (replicas) average_.emplace(*model_, *replicas);
    } else if (cut == "tensor" || cut == "sequence") {
      tensor_.emplace(*model_, axis, table,
                      troika::parallel::TensorOptions{.sequence = cut == "sequence"});
    } else {
      throw troika::Error(
          "bench", troika::ErrorKind::usage,
          {.what = "which cut", .got = cut, .expected = "tensor, sequence or context"});
    }
  }

  void step() {
    model_->zero_grad(/*set_to_none=*/true);
    troika::nn::only(model_->forward({tokens_}, loss_)).backward();
    if (tensor_) tensor_->finish_backward();
    if (average_) average_->finish_backward();
  }

 private:
  std::shared_ptr<troika::nn::Model> model_;
  std::optional<troika::parallel::TensorParallel> tensor_;
  std::optional<troika::parallel::ContextParallel> context_;
  std::optional<troika::parallel::DataParallel> average_;
  at::Tensor tokens_;
  std::shared_ptr<const troika::nn::OutputLoss> loss_;
};

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4) {
    throw troika::Error("bench", troika::ErrorKind::usage,
                        {.what = "arguments of tensor_rank",
                         .got = std::to_string(argc - 1),
                         .expected = "MODEL CUT TOKENS"});
  }
  at::set_num_threads(1);
  const auto world = troika::comm::world();
  troika::compat::keep_freed_memory();
  const auto options = model_of(argv[1], static_cast<int64_t>(troika::number_of(argv[3])));
  const std::string kind = argv[2];
  // The averages of gradients have a group of their own.
  const troika::comm::MeshGroups groups(
      world, troika::layout::Mesh(troika::layout::Axis::context, world.size()));
  torch::manual_seed(0);
  CutModel cut(options, kind, world, &groups.replicas());
  torch::manual_seed(0);
  CutModel quiet(options, kind, troika::comm::local::lone_rank(world.size(), [](const auto&) {}),
                 nullptr);
  troika::answer_commands({
      {"sync",
       [&](int times) { return troika::seconds_of_steps(world, times, [&] { cut.step(); }); }},
      {"quiet",
       [&](int times) { return troika::seconds_of_steps(world, times, [&] { quiet.step(); }); }},
  });
} catch (const std::exception& error) {
  return troika::comm::end_with(error);
}
