#include "troika/nn/attention.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/errors.h"
#include "troika/compat/torch.h"
#include "troika/nn/gelu.h"
#include "troika/nn/kernels/kernels.h"
#include "troika/nn/precision.h"
#include "troika/nn/zoo.h"

namespace troika::nn {
namespace {

constexpr int64_t kBatch = 2, kHeads = 3, kSize = 4;

// Computes attention by its definition, in float64: for each position, a softmax over itself and
// earlier positions.
at::Tensor attention_by_definition(const at::Tensor& qkv) {
  const int64_t length = qkv.size(1);
  const auto parts = qkv.to(at::kDouble)
                         .view({kBatch, length, 3, kHeads, kSize})
                         .permute({2, 0, 3, 1, 4})
                         .unbind(0);
  const at::Tensor scores = parts[0].matmul(parts[1].transpose(2, 3)) / std::sqrt(double{kSize});
  const at::Tensor future = at::ones({length, length}, at::kBool).triu(1);
  const at::Tensor mixed = scores.masked_fill(future, -INFINITY).softmax(-1).matmul(parts[2]);
  return mixed.transpose(1, 2).reshape({kBatch, length, kHeads * kSize});
}

struct AttentionCase {
  int64_t length;
  at::ScalarType type;
  double tolerance;
};

// Lengths of one block, of whole blocks, and of a last one that is not full.
TEST(CausalSelfAttention, EqualsItsDefinitionForwardAndBackward) {
  for (const auto& one :
       {AttentionCase{5, at::kDouble, 1e-12}, AttentionCase{1, at::kFloat, 1e-5},
        AttentionCase{5, at::kFloat, 1e-5}, AttentionCase{256, at::kFloat, 1e-5},
        AttentionCase{300, at::kFloat, 1e-5}, AttentionCase{300, at::kBFloat16, 4e-2}}) {
    for (const auto candidate : available_attention()) {
      torch::manual_seed(4);
      const auto make = [&] {
        return at::randn({kBatch, one.length, 3 * kHeads * kSize}).to(one.type).requires_grad_();
      };
      const at::Tensor qkv = make();
      const at::Tensor exact = qkv.detach().to(at::kDouble).requires_grad_();
      const at::Tensor weights = at::randn({kBatch, one.length, kHeads * kSize}).to(one.type);
      const at::Tensor found = causal_self_attention(qkv, kHeads, 0.0, candidate);
      const at::Tensor expected = attention_by_definition(exact);
      (found * weights).sum().backward();
      (expected * weights.to(at::kDouble)).sum().backward();
      const auto is_near = [&](const at::Tensor& a, const at::Tensor& b) {
        return (a.to(at::kDouble) - b).abs().max().item<double>() <=
               one.tolerance * b.abs().max().item<double>();
      };
      EXPECT_EQ(found.scalar_type(), one.type);
      EXPECT_TRUE(is_near(found, expected)) << attention_name(candidate) << one.length << one.type;
      EXPECT_TRUE(is_near(qkv.grad(), exact.grad()))
          << attention_name(candidate) << one.length << one.type;
    }
  }
}

TEST(CausalSelfAttention, ByProductsKeepsItsTypeUnderAutocast) {
  torch::manual_seed(8);
  const at::Tensor qkv = at::randn({kBatch, 140, 3 * kHeads * kSize}).requires_grad_();
  const at::Tensor expected = causal_self_attention(qkv, kHeads, 0.0, Attention::eager);
  at::Tensor found;
  {
    const Autocast autocast(parse_precision("bf16-mixed"), at::kCPU);
    found = causal_self_attention(qkv, kHeads, 0.0, Attention::eager);
  }
  EXPECT_TRUE(found.equal(expected));
  found.sum().backward();
  EXPECT_EQ(qkv.grad().scalar_type(), at::kFloat);
}

TEST(CausalSelfAttention, DropsWeightsOfTheSoftmax) {
  for (const auto candidate : available_attention()) {
    torch::manual_seed(5);
    const at::Tensor qkv = at::zeros({kBatch, 4, 3 * kHeads * kSize});
    qkv.slice(2, 2 * kHeads * kSize).fill_(1);
    // The first position attends only to itself; its weight of 1 is dropped or doubled.
    const at::Tensor first = causal_self_attention(qkv, kHeads, 0.5, candidate).select(1, 0);
    EXPECT_TRUE((first.eq(0) | first.eq(2)).all().item<bool>()) << attention_name(candidate);
  }
}

TEST(Attention, IsNamedAsHuggingFaceDoes) {
  for (const auto& name : attention_names()) {
    EXPECT_EQ(attention_name(parse_attention(name)), name);
  }
  EXPECT_ERROR(parse_attention("egaer"), ErrorKind::usage,
               "[nn] unknown implementation of attention; got egaer (did you mean eager?)");
}

TEST(Attention, IsThatOfTheModelsOptions) {
  ModelOptions options{
      .name = "gpt", .vocab_size = 7, .context = 4, .layers = 2, .heads = 1, .width = 8};
  options.attn_implementation = "sdpa";
  const auto model = make_model(options);
  const auto modules = attention_modules(*model);
  ASSERT_EQ(modules.size(), 2u);
  EXPECT_EQ(modules[1]->attention(), Attention::sdpa);
  modules[1]->use(Attention::eager);
  EXPECT_EQ(attention_modules(*model)[1]->attention(), Attention::eager);
}

TEST(Attention, IsEagerOnACpuIn16Bits) {
  EXPECT_EQ(resolve(Attention::automatic, at::kCPU, at::kBFloat16, 0), Attention::eager);
  const auto candidates = available_attention();
  EXPECT_EQ(resolve(Attention::automatic, at::kCPU, at::kFloat, 0), candidates.back());
  EXPECT_EQ(resolve(Attention::automatic, at::kCPU, at::kFloat, 0.1), Attention::eager);
  EXPECT_EQ(resolve(Attention::sdpa, at::kCPU, at::kBFloat16, 0), candidates.back());
  EXPECT_EQ(resolve(Attention::eager, at::kCPU, at::kFloat, 0), Attention::eager);
}

TEST(Attention, IsTimedWithoutATrace) {
  torch::manual_seed(6);
  const at::Tensor expected = at::rand({3});
  torch::manual_seed(6);
  const auto candidates = available_attention();
  const auto seconds = time_attention(
      {.batch = 2, .heads = 2, .length = 8, .size = 4, .type = at::kBFloat16}, candidates);
  ASSERT_EQ(seconds.size(), candidates.size());
  for (const double one : seconds) EXPECT_GT(one, 0);
  EXPECT_TRUE(at::rand({3}).equal(expected));
}

// All bfloat16 numbers of the range, and the same number of values between them.
TEST(GeluTanh, EqualsItsDefinitionForwardAndBackward) {
  const at::Tensor all = at::arange(-12.0, 12.0, 1.0 / 512, at::kDouble);
  for (const auto type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const at::Tensor x = all.to(type).requires_grad_();
    const at::Tensor exact = x.detach().to(at::kDouble).requires_grad_();
    const at::Tensor u = std::sqrt(2 / M_PI) * (exact + 0.044715 * exact.pow(3));
    const at::Tensor expected = 0.5 * exact * (1 + u.tanh());
    const at::Tensor found = gelu_tanh(x);
    found.sum().backward();
    expected.sum().backward();
    const double tolerance = type == at::kBFloat16 ? 1.0 / 256 : 1e-6;
    const auto is_near = [&](const at::Tensor& a, const at::Tensor& b) {
      return ((a.to(at::kDouble) - b).abs() <= tolerance * b.abs() + 1e-6).all().item<bool>();
    };
    EXPECT_EQ(found.scalar_type(), type);
    EXPECT_TRUE(is_near(found, expected)) << type;
    EXPECT_TRUE(is_near(x.grad(), exact.grad())) << type;
  }
}

TEST(GeluTanh, TakesViewsAndPassesNaNOn) {
  const at::Tensor x = at::randn({6, 8}).to(at::kBFloat16);
  EXPECT_TRUE(gelu_tanh(x.t()).equal(gelu_tanh(x).t()));
  EXPECT_TRUE(gelu_tanh(at::full({3}, NAN, at::kBFloat16)).isnan().all().item<bool>());
  EXPECT_TRUE(gelu_tanh(at::full({3}, NAN)).isnan().all().item<bool>());
}

#ifdef TROIKA_X86_KERNELS
// All instruction sets that this processor has give the same bits.
TEST(GeluTanh, OfLargeNegativeNumbersIsZeroAndFlat) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::tensor({-50.0, -1e3, -1e13, -1e15}).to(type).requires_grad_();
    const at::Tensor out = gelu_tanh(x);
    out.sum().backward();
    EXPECT_TRUE(out.eq(0).all().item<bool>()) << out;
    EXPECT_TRUE(x.grad().eq(0).all().item<bool>()) << x.grad();
  }
}

TEST(NnKernels, GiveTheSameBitsForAllInstructionSets) {
  using kernels::Kernels, kernels::Number;
  constexpr size_t kRows = 40, kColumns = 83;
  std::vector<const Kernels*> versions{&kernels::kBaseline};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    versions.push_back(&kernels::kAvx2);
  }
  if (&kernels::best() == &kernels::kAvx512) versions.push_back(&kernels::kAvx512);
  torch::manual_seed(7);
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const auto number = type == at::kFloat ? Number::f32 : Number::bf16;
    const at::Tensor x = (3 * at::randn({kRows, kColumns})).to(type);
    const at::Tensor gradient = at::randn({kRows, kColumns}).to(type);
    std::vector<std::vector<at::Tensor>> results;
    for (const auto* version : versions) {
      std::vector<at::Tensor> of{at::empty_like(x), at::empty_like(x), x.clone(), gradient.clone()};
      std::vector<float> scratch(kColumns);
      version->gelu(number, x.data_ptr(), of[0].data_ptr(), kRows * kColumns);
      version->gelu_backward(number, gradient.data_ptr(), x.data_ptr(), of[1].data_ptr(),
                             kRows * kColumns);
      const kernels::CausalRows shape{kRows / 2, kColumns, kColumns - kRows / 2};
      version->causal_softmax(number, of[2].data_ptr(), shape, 0.3F, scratch.data(), 0, kRows);
      version->causal_softmax_backward(number, of[3].data_ptr(), of[2].data_ptr(), shape, 0.3F,
                                       scratch.data(), 0, kRows);
      results.push_back(of);
    }
    for (const auto& other : results) {
      for (size_t i = 0; i < other.size(); ++i) EXPECT_TRUE(other[i].equal(results[0][i])) << i;
    }
  }
}
#endif

}  // namespace
}  // namespace troika::nn
