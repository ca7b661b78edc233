// Python's package `safetensors` and TensorBoard's own reader read Troika's files, and Troika reads
// that package's files: see read_files.py.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/checkpoint/checkpoint.h"
#include "troika/checkpoint/hugging_face.h"
#include "troika/compat/torch.h"
#include "troika/nn/zoo.h"
#include "troika/observe/loggers/tensorboard.h"
#include "troika/train/options/options.h"

namespace troika::train {
namespace {

class Python : public testing::Test {
 protected:
  // Writes NAME.safetensors, and notes what the model makes of an input.
  checkpoint::NamedTensors write_model(const nn::ModelOptions& options) {
    torch::manual_seed(3);
    const auto model = nn::make_model(options);
    model->eval();
    const torch::NoGradGuard no_grad;
    const auto input = nn::example_input(options, 2);
    io_.emplace_back(options.name + ".input", input);
    io_.emplace_back(options.name + ".logits", model->forward(input));
    const auto state = checkpoint::model_state(*model);
    checkpoint::save_weights(folder_ / (options.name + ".safetensors"), state, {}, {});
    for (const auto& [name, tensor] : state) {
      expected_[options.name][name] = tensor.sizes().vec();
    }
    return state;
  }

  void write_events() {
    observe::TensorBoardLogger logger(folder_.path());
    expected_["scalars"] = nlohmann::json::array();
    const auto log = [&](int64_t step, const char* name, double value) {
      logger.log(step, {{name, value}});
      expected_["scalars"].push_back({step, name, value});
    };
    log(1, "train/loss", 0.1);
    log(1, "validation/accuracy", 1e-30);
    log(1'000'000'007, "train/loss", -2.5);
  }

  // A run that ended after step 4, and resumed from a checkpoint after step 2.
  void write_resumed_events() const {
    const auto folder = folder_ / "resumed";
    observe::TensorBoardLogger first(folder);
    for (int64_t step = 1; step <= 4; ++step) first.log(step, {{"a", 1}});
    observe::TensorBoardLogger second(folder, observe::LogPosition{.step = 2, .rows = 1});
    second.log(3, {{"a", 2}});
  }

  const TemporaryFolder folder_;
  nlohmann::json expected_;
  checkpoint::NamedTensors io_;
};

TEST_F(Python, ReadsTheSameValuesAndGetsTheSameLogits) {
  nn::ModelOptions small{.name = "mlp", .num_classes = 5, .image_size = 4};
  small.hidden_width = 7;
  const auto mlp = write_model(small);
  const nn::ModelOptions gpt{
      .name = "gpt", .vocab_size = 11, .context = 6, .layers = 2, .heads = 2, .width = 8};
  checkpoint::save_hugging_face(folder_ / "gpt", write_model(gpt), gpt);
  expected_["heads"] = 2;
  write_events();
  write_resumed_events();
  checkpoint::save_safetensors(folder_ / "logits.safetensors", io_);
  write_file_atomically(folder_ / "expected.json", expected_.dump());

  const auto command =
      fmt::format("{} {} {}", TROIKA_PYTHON, TROIKA_READ_FILES, folder_.path().string());
  ASSERT_EQ(std::system(command.c_str()), 0) << command;

  const auto file = folder_ / "written_by_python.safetensors";
  EXPECT_EQ(checkpoint::read_safetensors_metadata(file).at("from"), "python");
  auto read = checkpoint::load_safetensors(file);
  const auto take = [&](const std::string& name) {
    const auto found = std::find_if(read.begin(), read.end(),
                                    [&](const auto& item) { return item.first == name; });
    if (found == read.end()) throw std::runtime_error("no " + name);
    const auto tensor = found->second;
    read.erase(found);
    return tensor;
  };
  EXPECT_TRUE(take("int64").equal(at::arange(-3, 4)));
  EXPECT_TRUE(take("bool").equal(torch::tensor({true, false}).view({2, 1})));
  EXPECT_TRUE(take("half").equal(torch::tensor({0.5, -2.0}, at::kHalf)));
  EXPECT_TRUE(take("empty").equal(at::empty({0, 3}, at::kDouble)));
  EXPECT_EQ(read.size(), mlp.size());
  for (const auto& [name, tensor] : mlp) EXPECT_TRUE(take(name).equal(tensor)) << name;
}

}  // namespace
}  // namespace troika::train
