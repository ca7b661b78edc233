// Counted FLOPs against numbers computed by hand.
#include "troika/compat/flop_counter.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>

#include <thread>

#include "tests/train/waves.h"
#include "troika/compat/torch.h"
#include "troika/nn/attention.h"
#include "troika/nn/recompute/recompute.h"
#include "troika/train/callbacks/peak.h"

namespace troika::train {
namespace {

int64_t flops_of(const std::function<void()>& work) {
  const compat::FlopCounter counter;
  work();
  return counter.flops();
}

TEST(Flops, OfProductsAreTwoForEachMultiplication) {
  const auto a = at::ones({2, 3, 4}), b = at::ones({2, 4, 5});
  EXPECT_EQ(flops_of([&] { at::matmul(a, b); }), 2 * 2 * 3 * 4 * 5);
  EXPECT_EQ(flops_of([&] { at::baddbmm(at::ones({1}), a, b); }), 2 * 2 * 3 * 4 * 5);
  EXPECT_EQ(flops_of([&] { at::linear(a, at::ones({7, 4}), at::ones({7})); }), 2 * 2 * 3 * 4 * 7);
  EXPECT_EQ(flops_of([&] { at::sin(a); }), 0);
}

TEST(Flops, OfConvolutionsCountPlacesAndGradientsThatAreAsked) {
  const auto input = at::ones({2, 4, 8, 9});
  const auto weight = at::ones({6, 2, 3, 2}).requires_grad_();  // in two groups
  at::Tensor output;
  const int64_t forward = 2 * 2 * (4 * 5) * (6 * 2 * 3 * 2);
  EXPECT_EQ(flops_of([&] { output = at::conv2d(input, weight, {}, 2, 1, 1, 2); }), forward);
  EXPECT_EQ(output.sizes(), at::IntArrayRef({2, 6, 4, 5}));
  EXPECT_EQ(flops_of([&] { output.sum().backward(); }), forward);
  const auto wide = at::ones({2, 4, 8, 9}).requires_grad_();
  EXPECT_EQ(flops_of([&] { at::conv2d(wide, weight, {}, 2, 1, 1, 2).sum().backward(); }),
            3 * forward);
  EXPECT_EQ(flops_of([&] {
              at::conv1d(at::ones({1, 1, 10}), at::ones({1, 1, 3}), {}, 1, at::IntArrayRef({0}), 4);
            }),
            2 * 2 * 3);
  const auto kernel = at::ones({4, 3, 2, 2}).requires_grad_();
  EXPECT_EQ(flops_of([&] { at::conv_transpose2d(input, kernel, {}, 2).sum().backward(); }),
            2 * 2 * (2 * 72) * (4 * 3 * 2 * 2));
}

TEST(Flops, OfABackwardPassLeaveOutWhatItRecomputes) {
  const auto task = make_waves_task(8, 0);
  const auto batch = Waves().load(std::vector<int64_t>{0, 1, 2, 3, 4}, {});
  // Linear layers of 3 to 8 and 8 to 2; the gradient of the input is not needed.
  const int64_t first = 2 * 5 * 3 * 8, second = 2 * 5 * 8 * 2;
  const auto step = [&] { task->training_step(batch).backward(); };
  EXPECT_EQ(flops_of(step), 2 * first + 3 * second);
  task->recompute(nn::recompute_plan("full", task->blocks().blocks().size()));
  const compat::FlopCounter counter;
  step();
  EXPECT_EQ(counter.flops(), 2 * first + 3 * second);
  EXPECT_GE(counter.recomputed(), first);
}

TEST(Flops, OfAGptLeaveOutWhatItRecomputes) {
  auto model = nn::make_model(
      {.name = "gpt", .vocab_size = 11, .context = 6, .layers = 2, .heads = 2, .width = 8});
  const auto tokens = at::randint(11, {3, 6}, at::kLong);
  const auto step = [&] { model->forward(tokens).sum().backward(); };
  const auto flops = flops_of(step);
  const auto recomputed = nn::recompute(*model, nn::recompute_plan("full", model->blocks().size()));
  const compat::FlopCounter counter;
  step();
  EXPECT_EQ(counter.flops(), flops);
  EXPECT_GT(counter.recomputed(), 0);
}

TEST(Flops, WorksAreTheProductsOfEachPassWithTheBytesTheyMustMove) {
  const auto a = at::ones({3, 4}).requires_grad_(), b = at::ones({4, 5}).requires_grad_();
  const auto image = at::ones({2, 4, 8, 9}), kernel = at::ones({6, 4, 3, 3}, at::kDouble);
  const compat::FlopCounter counter;
  const auto result = at::mm(a, b);
  at::conv2d(image.to(at::kDouble), kernel);
  result.sum().backward();
  using Work = std::tuple<int64_t, int64_t, bool>;
  std::vector<Work> works;
  for (const auto& one : counter.works()) works.emplace_back(one.flops, one.bytes, one.is_backward);
  const int64_t product = 2 * 3 * 4 * 5, moved = 4 * (12 + 20 + 15);
  const Work convolution{2 * 2 * (6 * 7) * (6 * 4 * 3 * 3),
                         8 * (2 * 4 * 8 * 9 + 6 * 4 * 3 * 3 + 2 * 6 * 6 * 7), false};
  EXPECT_THAT(works, testing::ElementsAre(Work{product, moved, false}, convolution,
                                          Work{product, moved, true}, Work{product, moved, true}));
}

// As autograd runs backward passes on GPUs: on a separate thread, with the state of the caller's
// thread.
TEST(Flops, OfABackwardPassOnAnotherThreadCount) {
  const auto a = at::ones({3, 4}).requires_grad_(), b = at::ones({4, 5}).requires_grad_();
  const auto on_a_thread = [](const std::function<void()>& work) {
    std::thread([&, state = at::ThreadLocalState()] {
      const at::ThreadLocalStateGuard guard(state);
      work();
    }).join();
  };
  EXPECT_EQ(flops_of([&] {
              const auto loss = at::mm(a, b).sum();
              on_a_thread([&] { loss.backward(); });
            }),
            3 * 2 * 3 * 4 * 5);
  EXPECT_EQ(flops_of([&] {
              const compat::FlopCounter::Pause pause;
              on_a_thread([&] { at::mm(a, b); });
            }),
            0);
  const auto leave = [&] {
    const compat::FlopCounter counter;
    at::mm(a, b);
    return std::make_pair(at::ThreadLocalState(), counter.flops());
  };
  const auto [state, flops] = leave();
  std::thread([&, &state = state] {
    const at::ThreadLocalStateGuard guard(state);
    at::mm(a, b);  // its counter is gone
  }).join();
  EXPECT_EQ(flops, 2 * 3 * 4 * 5);
}

// Makes observers see a call of an operator.
void observe(const char* name, std::vector<c10::IValue> inputs) {
  at::RecordFunction call(at::RecordScope::FUNCTION);
  call.before(name, &inputs);
}

TEST(Flops, OfFusedAttentionAreThoseOfItsProducts) {
  const auto q = at::ones({2, 6, 10, 4}), k = at::ones({2, 3, 7, 4}), v = at::ones({2, 3, 7, 5});
  const int64_t scores = 2 * (2 * 6) * 10 * 4 * 7, values = 2 * (2 * 6) * 10 * 7 * 5;
  for (const std::string kernel :
       {"flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention",
        "fused_attention_overrideable"}) {
    const std::string name = "aten::_scaled_dot_product_" + kernel;
    EXPECT_EQ(flops_of([&] {
                observe(name.c_str(), {q, k, v, 0.0, false});
              }),
              scores + values)
        << name;
    const compat::FlopCounter counter;
    observe((name + "_backward").c_str(), {at::ones({2, 6, 10, 5}), q, k, v});
    EXPECT_EQ(counter.flops(), 2 * (scores + values)) << name;
    EXPECT_EQ(counter.recomputed(), scores) << name;
  }
  EXPECT_EQ(flops_of([&] {
              observe("aten::_scaled_dot_product_attention_math", {q, k, v});
            }),
            0)
      << "its products count by themselves";
}

TEST(Flops, OfFusedRecurrentLayersAreThoseOfTheirProducts) {
  const auto steps = at::ones({7, 2, 3});  // [steps, batch, width]
  const auto inward = at::ones({4 * 5, 3}), onward = at::ones({4 * 5, 5}), bias = at::ones({4 * 5});
  const int64_t forward = 2 * (7 * 2) * (4 * 5) * (3 + 5);
  const std::vector<at::Tensor> weights{inward, onward, bias, bias};
  for (const auto& [name, inputs] :
       {std::pair<std::string, std::vector<c10::IValue>>{"aten::mkldnn_rnn_layer",
                                                         {steps, inward, onward, bias, bias}},
        {"aten::_cudnn_rnn", {steps, weights}}}) {
    EXPECT_EQ(flops_of([&] { observe(name.c_str(), inputs); }), forward) << name;
    EXPECT_EQ(flops_of([&] { observe((name + "_backward").c_str(), inputs); }), 2 * forward)
        << name;
  }
}

// The frames need no gradient.
TEST(Flops, OfAnS2vtAreThoseOfItsMatrices) {
  const nn::ModelOptions options{.name = "s2vt",
                                 .hidden_width = 6,
                                 .feature_width = 5,
                                 .frames = 3,
                                 .vocab_size = 11,
                                 .context = 4,
                                 .width = 8};
  // In float64, because oneDNN's layers also make the gradients of the first states.
  const auto model = nn::make_model(options);
  model->to(at::kDouble);
  auto inputs = nn::example_inputs(options, 2);
  inputs[0] = inputs[0].to(at::kDouble);
  const int64_t rows = 2 * (3 + 4), embedding = 2 * (2 * 3) * 5 * 8, head = 2 * (2 * 4) * 6 * 11;
  const int64_t lstms = 2 * rows * (4 * 6) * ((8 + 6) + (6 + 8 + 6));
  const int64_t forward = embedding + lstms + head;
  EXPECT_EQ(flops_of([&] { model->forward(inputs); }), forward);
  // The first states are zeros, whose gradients are not needed.
  const int64_t first_states = 2 * (2 * 2) * (4 * 6) * 6;
  EXPECT_EQ(flops_of([&] { nn::only(model->forward(inputs)).sum().backward(); }),
            3 * forward - embedding - first_states);
}

TEST(Flops, OfAttentionAreTheSameByAllImplementations) {
  const auto qkv = at::randn({2, 6, 3 * 3 * 4}).requires_grad_();
  for (const auto way : nn::available_attention()) {
    EXPECT_EQ(flops_of([&] { nn::causal_self_attention(qkv, 3, 0, way).sum().backward(); }),
              6 * 2 * (2 * 3) * 6 * 6 * 4)
        << nn::attention_name(way);
  }
}

TEST(Flops, DoNotCountInAPause) {
  const auto a = at::ones({3, 4}), b = at::ones({4, 5}).requires_grad_();
  EXPECT_EQ(flops_of([&] {
              {
                const compat::FlopCounter::Pause pause;
                at::mm(a, b).sum().backward();
              }
              at::mm(a, b);
            }),
            2 * 3 * 4 * 5);
}

TEST(Peak, OfKnownGpusIsTheirDataSheets) {
  EXPECT_EQ(published_peak("NVIDIA H100 80GB HBM3", at::kBFloat16, false), 989.4e12);
  EXPECT_EQ(published_peak("NVIDIA H100 PCIe", at::kBFloat16, false), 756e12);
  EXPECT_EQ(published_peak("NVIDIA A100-SXM4-80GB", at::kFloat, false), 19.5e12);
  EXPECT_EQ(published_peak("NVIDIA A100-SXM4-80GB", at::kFloat, true), 156e12);
  EXPECT_EQ(published_peak("NVIDIA A10", at::kHalf, false), 125e12);
  EXPECT_EQ(published_peak("NVIDIA L40S", at::kHalf, false), 362e12);
  EXPECT_EQ(published_peak("Tesla V100-SXM2-32GB", at::kHalf, false), 125e12);
  EXPECT_EQ(published_peak("Tesla V100-PCIE-16GB", at::kHalf, false), 112e12);
  EXPECT_EQ(published_peak("Tesla V100-SXM2-32GB", at::kBFloat16, false), std::nullopt);
  EXPECT_EQ(published_peak("NVIDIA GH200 480GB", at::kHalf, false), std::nullopt);
  EXPECT_EQ(published_peak("", at::kFloat, false), std::nullopt);
}

TEST(Peak, OfAProcessorIsMeasured) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    const auto peak = peak_of(type, at::kCPU);
    EXPECT_GT(peak.flops, 1e6);
    EXPECT_EQ(peak.source, "measured by matrix products");
  }
}

}  // namespace
}  // namespace troika::train
