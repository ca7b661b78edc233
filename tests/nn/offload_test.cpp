#include "troika/nn/offload.h"

#include <gmock/gmock.h>

#include <fstream>
#include <functional>
#include <string>

#include "tests/support/errors.h"
#include "troika/base/temporary_folder.h"
#include "troika/compat/torch.h"
#include "troika/nn/recompute/recompute.h"
#include "troika/nn/zoo.h"

namespace troika::nn {
namespace {

std::vector<at::Tensor> gradients(Model& model, const at::Tensor& input,
                                  const ActivationOffload* offload) {
  torch::manual_seed(7);
  const auto loss = model.forward(input).square().mean();
  EXPECT_TRUE(!offload || offload->bytes() > 0);
  loss.backward();
  std::vector<at::Tensor> result;
  for (const auto& parameter : model.parameters()) {
    result.push_back(parameter.grad().clone());
    parameter.mutable_grad() = at::Tensor();
  }
  return result;
}

class OffloadedModel : public testing::TestWithParam<std::string> {};

// Alone, and with recomputation, whose inputs are offloaded. Runs twice, so that files are reused.
TEST_P(OffloadedModel, HasTheSameGradients) {
  const TemporaryFolder folder;
  const ModelOptions options{.name = GetParam(),
                             .dropout = GetParam() == "gpt" ? 0.2 : 0.0,
                             .image_size = 32,
                             .vocab_size = 19,
                             .context = 64,
                             .layers = 2,
                             .heads = 2,
                             .width = 64};
  const auto model = make_model(options);
  const auto input = example_input(options, 16);
  const auto expected = gradients(*model, input, nullptr);
  const auto files = std::make_shared<ActivationOffload>(folder.path());
  const auto offloaded = offload(*model, files);
  for (const char* policy : {"none", "none", "full"}) {
    const auto recomputed = recompute(*model, recompute_plan(policy, model->blocks().size()));
    const auto found = gradients(*model, input, files.get());
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(found[i].equal(expected[i])) << i;
    EXPECT_EQ(files->bytes(), 0) << "the graph is gone";
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "files have no names";
}

INSTANTIATE_TEST_SUITE_P(, OffloadedModel, testing::Values("resnet20", "gpt"));

constexpr int64_t kOffloadedElements = kLeastOffloadedBytes / 4;

TEST(ActivationOffload, WritesWhatIsSavedTwiceOnce) {
  const TemporaryFolder folder;
  ActivationOffload offload(folder.path());
  const auto x = at::rand({kOffloadedElements});
  const auto again = offload.pack(x);
  const auto one = offload.pack(x);
  EXPECT_EQ(offload.bytes(), 4 * kOffloadedElements);
  const auto before = x.clone();
  x.add_(1);
  const auto changed = offload.pack(x);
  EXPECT_EQ(offload.bytes(), 8 * kOffloadedElements);
  EXPECT_TRUE(one().equal(before));
  EXPECT_TRUE(changed().equal(x));
}

TEST(ActivationOffload, MemoryThatIsUsedAgainIsNoTensorOfBefore) {
  const TemporaryFolder folder;
  ActivationOffload offload(folder.path());
  std::vector<float> memory(kOffloadedElements, 1);
  const auto one = offload.pack(at::from_blob(memory.data(), {kOffloadedElements}));
  std::fill(memory.begin(), memory.end(), 2.0F);
  const auto two = offload.pack(at::from_blob(memory.data(), {kOffloadedElements}));
  EXPECT_EQ(one()[0].item<float>(), 1);
  EXPECT_EQ(two()[0].item<float>(), 2);
}

// As in a pipeline without flushes, something is live all the time.
TEST(ActivationOffload, UsesFilesAgainWhileOthersAreLive) {
  const TemporaryFolder folder;
  ActivationOffload offload(folder.path());
  std::function<at::Tensor()> before;
  for (int i = 0; i < 40; ++i) {
    const auto now = offload.pack(at::full({int64_t{1} << 22}, i, at::kFloat));  // 16 MiB
    if (before) EXPECT_EQ(before()[0].item<float>(), static_cast<float>(i - 1));
    before = now;
  }
  std::ifstream maps("/proc/self/maps");
  int files = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(folder.path().string()) != std::string::npos) ++files;
  }
  EXPECT_EQ(files, 2) << "of 64 MiB each";
}

TEST(ActivationOffload, LeavesAloneWhatIsSmallOrAParameterOrHasGaps) {
  const TemporaryFolder folder;
  ActivationOffload offload(folder.path());
  const auto matrix = at::rand({256, 256}).requires_grad_();
  const auto wide = at::rand({2, kOffloadedElements});
  for (const auto& tensor :
       {at::rand({kOffloadedElements - 1}), matrix, matrix.t(), wide.slice(1, 1),
        at::rand({1, kOffloadedElements}).expand({3, kOffloadedElements})}) {
    const auto back = offload.pack(tensor);
    EXPECT_EQ(offload.bytes(), 0);
    EXPECT_TRUE(back().equal(tensor));
  }
}

TEST(ActivationOffload, KeepsStrides) {
  const TemporaryFolder folder;
  ActivationOffload offload(folder.path());
  const auto x = at::rand({4, 8, 32, 32}).contiguous(at::MemoryFormat::ChannelsLast);
  const auto back = offload.pack(x)();
  EXPECT_TRUE(back.equal(x));
  EXPECT_EQ(back.strides(), x.strides());
}

TEST(ActivationOffload, NamesAFolderItCannotUse) {
  ActivationOffload offload("/nowhere");
  EXPECT_ERROR(offload.pack(at::rand({kOffloadedElements})), ErrorKind::usage,
               "[base] cannot keep 67108864 bytes in a file in /nowhere; got No such file or "
               "directory");
}

}  // namespace
}  // namespace troika::nn
