// Models of images cut over a tensor axis.
#include <gmock/gmock.h>

#include "tests/parallel/tensor_courses.h"
#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/compat/fake_tensors.h"
#include "troika/nn/batch_norm.h"
#include "troika/nn/convolution.h"
#include "troika/nn/linear.h"
#include "troika/nn/memory_format.h"

namespace troika::parallel::tensor_test {
namespace {

// Runs on rank 0 alone, where it must throw before any communication.
void expect_refused(int ranks, const std::function<std::shared_ptr<nn::Model>()>& make_it,
                    const SplitTable& table, const std::string& message,
                    const TensorOptions& how = {}) {
  comm::local::run(ranks, [&](const comm::Group& group) {
    if (group.rank() != 0) return;  // the others do not answer
    const auto model = make_it();
    EXPECT_ERROR(TensorParallel(*model, group, table, how), ErrorKind::usage, message);
  });
}

TEST(TensorParallel, OfResnetsEqualsOneProcess) {
  for (const std::string optimizer : {"adamw", "sgd"}) {
    expect_one_process({.model = images("resnet20", 8), .optimizer = optimizer});
  }
}

TEST(TensorParallel, OfVggsEqualsOneProcess) {
  expect_one_process({.model = images("vgg11_cifar", 32, 0.3), .lr = 1e-3});
}

// Bottlenecks, projections, and a last convolution whose partner is the classifier.
TEST(TensorParallel, OfOtherConvolutionsEqualsOneProcess) {
  for (const auto& model : {images("resnet50_cifar", 16), images("vgg16_bn_cifar", 32, 0.3)}) {
    expect_one_process({.model = model, .optimizer = "sgd", .steps = 1}, {2});
  }
}

TEST(TensorParallel, RecomputesImages) {
  expect_one_process(
      {.model = images("resnet20", 8), .recompute = "full", .optimizer = "sgd", .steps = 4}, {2});
}

// A grouped convolution between two others, as in a ResNeXt block (Xie et al. 2017).
std::shared_ptr<nn::Model> make_grouped(int64_t groups) {
  using torch::nn::Conv2dOptions;
  auto model = std::make_shared<nn::Model>();
  const auto in = model->place("in", nn::Conv2d(Conv2dOptions(2, 8, 1)));
  const auto grouped =
      model->place("grouped", nn::Conv2d(Conv2dOptions(8, 16, 3).padding(1).groups(groups)));
  const auto norm = model->place("norm", nn::BatchNorm(16));
  const auto out = model->place("out", nn::Conv2d(Conv2dOptions(16, 2, 1)));
  model->add_block({"all", {"in", "grouped", "norm", "out"}, {}, [=](const at::Tensor& x) {
                      const auto inner = norm->forward(grouped->forward(in->forward(x).tanh()));
                      return x + out->forward(inner);
                    }});
  model->to(at::kDouble);
  return model;
}

const SplitTable& grouped_table() {
  static const SplitTable table{{"in", Split::column},
                                {"grouped", Split::groups},
                                {"norm", Split::norm_of_column},
                                {"out", Split::row}};
  return table;
}

// In both memory formats, which activations and shards keep.
TEST(TensorParallel, OfGroupedConvolutionsEqualsOneProcess) {
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    std::vector<std::shared_ptr<nn::Model>> models;
    for (int i = 0; i < 5; ++i) {
      torch::manual_seed(i == 4 ? 0 : i);  // rank 0's values count
      models.push_back(make_grouped(4));
      nn::lay_out(*models.back(), format);
    }
    const auto x = at::arange(2 * 2 * 9, at::kDouble).sin().view({2, 2, 3, 3}).contiguous(format);
    const auto run = [&](nn::Model& model) {
      const auto inputs = x.clone().requires_grad_();
      const auto outputs = model.forward(inputs);
      outputs.square().sum().backward();
      model.eval();
      return std::vector<at::Tensor>{outputs.detach(), inputs.grad()};
    };
    const auto expected = run(*models[4]);
    const auto evaluated = models[4]->forward(x);
    comm::local::run(4, [&](const comm::Group& group) {
      auto& model = *models[static_cast<size_t>(group.rank())];
      TensorParallel tensor(model, group, grouped_table());
      EXPECT_EQ(named(model, "grouped.weight").sizes().vec(), (layout::Dims{4, 2, 3, 3}));
      EXPECT_TRUE(named(model, "grouped.weight").is_contiguous(format));
      EXPECT_EQ(named(model, "out.weight").sizes().vec(), (layout::Dims{2, 4, 1, 1}));
      const auto found = run(model);
      expect_near(found[0], expected[0], "outputs");
      EXPECT_TRUE(found[0].is_contiguous(format));
      expect_near(found[1], expected[1], "gradient of the input");
      tensor.finish_backward();
      for (const auto& [name, parameter] : nn::named_parameters(*models[4])) {
        expect_near(tensor.gather(name, named(model, name).grad()), parameter.grad(), name);
      }
      expect_near(model.forward(x), evaluated, "by running statistics");
      tensor.make_whole();
      EXPECT_TRUE(named(model, "grouped.weight").is_contiguous(format));
      for (const auto& [name, buffer] : nn::named_buffers(*models[4])) {
        expect_near(model.named_buffers()[name], buffer, name);
      }
      EXPECT_EQ(model.forward(x).sizes(), x.sizes()) << "whole again";
    });
  }
}

TEST(TensorParallel, RefusesChannelsAndGroupsThatCannotBeCut) {
  const auto resnet = images("resnet20", 8);
  expect_refused(
      3, [&] { return make(resnet); }, split_table(resnet),
      "[parallel] layer1.0.conv1 cannot be cut over the tensor axis; got 16 channels, 3 "
      "ranks, expected a multiple of 3 channels");
  const auto of_groups = [] { return make_grouped(2); };
  expect_refused(4, of_groups, grouped_table(),
                 "[parallel] grouped cannot be cut over the tensor axis; got 2 groups, 4 ranks, "
                 "expected a multiple of 4 groups");
  expect_refused(2, of_groups, {{"in", Split::column}, {"grouped", Split::row}},
                 "[parallel] block all cannot be cut by the rule for grouped; got "
                 "troika::nn::Conv2dImpl, expected an nn::Linear, nn::Conv1D, or nn::Conv2d of one "
                 "group");
  expect_refused(2, of_groups, {{"in", Split::groups}},
                 "[parallel] block all cannot be cut by the rule for in; got "
                 "troika::nn::Conv2dImpl, expected an nn::Conv2d of several groups");
  expect_refused(2, of_groups, grouped_table(),
                 "[parallel] sequence parallelism cuts tokens, not images; got a convolution, in",
                 {.sequence = true});
}

// All models of convolutions of the zoo that have a table have rules that fit.
TEST(TensorParallel, TablesFitTheModels) {
  for (const auto& name : nn::model_names()) {
    const nn::ModelOptions options{.name = name, .image_size = 224};
    const auto table = split_table(options);
    if (nn::sample_kind(name) != nn::SampleKind::images || table.empty()) continue;
    SCOPED_TRACE(name);
    const compat::FakeTensorGuard no_memory;
    require_splittable(*nn::make_model(options), table, 4);
  }
}

}  // namespace
}  // namespace troika::parallel::tensor_test
