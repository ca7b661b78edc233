// One rank of bench/tensor: steps of a model that is cut over the ranks, on command.
//
// tensor_rank MODEL SEQUENCE, with the variables of torchrun. MODEL is gpt or llama: 4 layers of
// width 1024 with 16 heads, 8192 words, 2 samples of 256 tokens. SEQUENCE is 1 with sequence
// parallelism, or 0. A step is a forward and a backward pass, without an optimizer. Reads commands
// from the standard input, one per line: "sync N" runs N steps of all ranks together, "quiet N" the
// same steps without communication. Answers each command with a line of JSON: the seconds of every
// step.
#include <string>

#include "bench/rank_commands.h"
#include "troika/comm/end_with.h"
#include "troika/comm/local/lone_rank.h"
#include "troika/comm/world/world.h"
#include "troika/compat/tensor_memory.h"
#include "troika/nn/model.h"
#include "troika/nn/output_layer.h"
#include "troika/nn/zoo.h"
#include "troika/parallel/tensor/tensor_parallel.h"

namespace {

constexpr int64_t kSamples = 2;

troika::nn::ModelOptions model_of(const std::string& name) {
  if (name != "gpt" && name != "llama") {
    throw troika::Error("bench", troika::ErrorKind::usage,
                        {.what = "which model", .got = name, .expected = "gpt or llama"});
  }
  return {.name = name,
          .vocab_size = 8192,
          .context = 256,
          .layers = 4,
          .heads = 16,
          .width = 1024,
          .tie_word_embeddings = false};
}

class CutModel {
 public:
  CutModel(const troika::nn::ModelOptions& options, const troika::comm::Group& axis, bool sequence)
      : model_(troika::nn::make_model(options)),
        tensor_(*model_, axis, troika::parallel::split_table(options), {.sequence = sequence}),
        tokens_(troika::nn::example_input(options, kSamples)),
        loss_(std::make_shared<troika::nn::OutputLoss>(
            troika::nn::OutputLoss{at::randint(options.vocab_size, tokens_.sizes(), at::kLong)})) {}

  void step() {
    model_->zero_grad(/*set_to_none=*/true);
    troika::nn::only(model_->forward({tokens_}, loss_)).backward();
    tensor_.finish_backward();
  }

 private:
  std::shared_ptr<troika::nn::Model> model_;
  troika::parallel::TensorParallel tensor_;
  at::Tensor tokens_;
  std::shared_ptr<const troika::nn::OutputLoss> loss_;
};

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) {
    throw troika::Error("bench", troika::ErrorKind::usage,
                        {.what = "arguments of tensor_rank",
                         .got = std::to_string(argc - 1),
                         .expected = "MODEL SEQUENCE"});
  }
  at::set_num_threads(1);
  const auto world = troika::comm::world();
  troika::compat::keep_freed_memory();
  const auto options = model_of(argv[1]);
  const bool sequence = troika::number_of(argv[2]) > 0;
  torch::manual_seed(0);
  CutModel cut(options, world, sequence);
  torch::manual_seed(0);
  CutModel quiet(options, troika::comm::local::lone_rank(world.size(), [](const auto&) {}),
                 sequence);
  troika::answer_commands({
      {"sync",
       [&](int times) { return troika::seconds_of_steps(world, times, [&] { cut.step(); }); }},
      {"quiet",
       [&](int times) { return troika::seconds_of_steps(world, times, [&] { quiet.step(); }); }},
  });
} catch (const std::exception& error) {
  return troika::comm::end_with(error);
}
