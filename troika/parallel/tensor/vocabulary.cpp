#include "troika/parallel/tensor/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/autocast.h"
#include "troika/compat/autograd.h"
#include "troika/compat/torch.h"
#include "troika/nn/linear_cross_entropy.h"
#include "troika/parallel/tensor/axis_functions.h"
#include "troika/parallel/tensor/parameter_cuts.h"

namespace troika::parallel {

namespace {

using torch::autograd::variable_list;

void check_words(const at::Tensor& words, const VocabularyShard& shard, int64_t ignored,
                 const char* what) {
  if (!words.is_cpu()) return;
  const at::Tensor flat = words.contiguous();
  const auto* const begin = flat.data_ptr<int64_t>();
  for (const auto* word = begin; word != begin + flat.numel(); ++word) {
    TORCH_CHECK_INDEX(*word == ignored || (*word >= 0 && *word < shard.words), what, " ", *word,
                      " is out of bounds.");
  }
}

// Numbers of words in this rank's rows; 0 for words that are not among them.
struct OwnWords {
  at::Tensor numbers;
  at::Tensor are_own;  // of bool
};

OwnWords own_words(const at::Tensor& words, const VocabularyShard& shard) {
  const auto are_own = words.ge(shard.rows.begin).logical_and_(words.lt(shard.rows.end));
  return {words.sub(shard.rows.begin).mul_(are_own), are_own};
}

// The gradients of a mean loss, kept in place of logits.
struct LossGradients {
  at::Tensor of_hidden;  // undefined if not needed
  at::Tensor of_matrix;
};

// The losses of the rows [begin, end), and what follows from them.
class LossOfRows {
 public:
  LossOfRows(const VocabularyShard& shard, const at::Tensor& matrix, int64_t ignored,
             const nn::LossTerms& terms = {})
      : shard_(shard), matrix_(matrix), ignored_(ignored), terms_(terms) {}

  // Computes the logits of hidden [rows, width] and their losses, [rows]. Collective.
  at::Tensor compute(const at::Tensor& hidden, const at::Tensor& targets) {
    const auto wide = at::promote_types(hidden.scalar_type(), at::kFloat);
    logits_ = at::mm(hidden, matrix_.t()).to(wide);
    std::tie(maxima_, best_) = logits_.max(1);
    own_maxima_ = maxima_.clone();
    shard_.axis.all_reduce(maxima_, comm::ReduceOp::max, {.label = "tensor axis: largest logits"});
    logits_.sub_(maxima_.unsqueeze(1));
    counted_ = targets.ne(ignored_);
    words_ = own_words(targets, shard_);
    const at::Tensor of_target =
        logits_.gather(1, words_.numbers.unsqueeze(1)).squeeze(1).mul_(words_.are_own);
    std::vector<at::Tensor> own{at::Tensor(), of_target};
    if (terms_.label_smoothing != 0) own.push_back(logits_.sum(1));
    own[0] = logits_.exp_().sum(1);
    const at::Tensor sums = at::stack(own);
    shard_.axis.all_reduce(sums, comm::ReduceOp::sum, {.label = "tensor axis: sums of logits"});
    sums_ = sums[0];
    const at::Tensor of_sums = sums_.log();
    at::Tensor losses = of_sums.sub(sums[1], 1 - terms_.label_smoothing);
    if (terms_.label_smoothing != 0) losses.sub_(sums[2], of_each_word());
    if (terms_.z_loss != 0) {
      log_sums_ = of_sums + maxima_;
      losses.add_(log_sums_.square(), terms_.z_loss);
    }
    return losses.mul_(counted_);
  }

  // Returns the gradients of this rank's logits, for losses with the factor `scale`.
  at::Tensor gradients(double scale) {
    logits_.div_(sums_.unsqueeze(1));
    if (terms_.z_loss != 0) logits_.mul_((log_sums_ * (2 * terms_.z_loss) + 1).unsqueeze(1));
    if (terms_.label_smoothing != 0) logits_.sub_(of_each_word());
    const at::Tensor of_targets =
        words_.are_own.to(logits_.scalar_type()).mul_(terms_.label_smoothing - 1);
    logits_.scatter_add_(1, words_.numbers.unsqueeze(1), of_targets.unsqueeze(1));
    return logits_.mul_(counted_.to(logits_.scalar_type()).mul_(scale).unsqueeze(1));
  }

  // Returns the number of the first word with the largest logit. Collective.
  at::Tensor predictions() const {
    const at::Tensor first =
        best_.add(shard_.rows.begin).masked_fill_(own_maxima_.ne(maxima_), shard_.words);
    shard_.axis.all_reduce(first, comm::ReduceOp::min, {.label = "tensor axis: predictions"});
    return first;
  }

 private:
  // The weight of a word by label smoothing.
  double of_each_word() const { return terms_.label_smoothing / static_cast<double>(shard_.words); }

  const VocabularyShard& shard_;
  const at::Tensor& matrix_;
  const int64_t ignored_;
  const nn::LossTerms terms_;
  at::Tensor logits_, maxima_, own_maxima_, best_, sums_, log_sums_, counted_;
  OwnWords words_;
};

// Calls `work` with ranges of rows for which this rank's logits exist at the same time.
template <typename Work>
void for_parts_of_rows(int64_t rows, int64_t columns, const Work& work) {
  const int64_t rows_of_part = nn::linear_cross_entropy_rows(columns);
  for (int64_t begin = 0; begin < rows; begin += rows_of_part) {
    work(begin, std::min(begin + rows_of_part, rows));
  }
}

class MeanLossNode : public torch::autograd::Node {
 public:
  MeanLossNode(const at::Tensor& hidden, const at::Tensor& matrix, LossGradients gradients)
      : Node(torch::autograd::collect_next_edges(hidden, matrix)),
        gradients_(std::move(gradients)),
        of_hidden_(hidden.scalar_type()),
        of_matrix_(matrix.scalar_type()) {}

  variable_list apply(variable_list&& gradients) override {
    compat::refuse_create_graph("cross entropy over the tensor axis");
    TORCH_CHECK(!is_used_, "the loss over a tensor axis supports one backward pass");
    is_used_ = true;
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    const auto scaled = [&](at::Tensor& gradient, at::ScalarType type) {
      if (!gradient.defined() || !gradients[0].defined()) return at::Tensor();
      return gradient.mul_(gradients[0]).to(type);
    };
    return {scaled(gradients_.of_hidden, of_hidden_), scaled(gradients_.of_matrix, of_matrix_)};
  }

  void release_variables() override { gradients_ = {}; }

 private:
  LossGradients gradients_;
  const at::ScalarType of_hidden_, of_matrix_;
  bool is_used_ = false;
};

// Returns the mean loss of hidden [rows, width]. The gradient of `hidden` is this rank's summand.
at::Tensor mean_loss(const at::Tensor& hidden, const at::Tensor& matrix, const at::Tensor& targets,
                     const nn::OutputLoss& asked, const VocabularyShard& shard) {
  const auto compute = compat::compute_type(hidden);
  const bool has_graph = at::GradMode::is_enabled();
  LossGradients made;
  at::Tensor result;
  {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    // Autocast would cast the operands again.
    const compat::AutocastGuard in_own_type(hidden.device().type(), {});
    const at::Tensor left = hidden.detach().to(compute), right = matrix.detach().to(compute);
    const auto sums = at::promote_types(compute, at::kFloat);
    if (has_graph && hidden.requires_grad()) made.of_hidden = at::empty_like(left);
    if (has_graph && matrix.requires_grad()) made.of_matrix = at::zeros_like(right, sums);
    const double count = asked.divisor ? static_cast<double>(*asked.divisor)
                                       : targets.ne(asked.ignored).sum().item<double>();
    result = at::zeros({}, left.options().dtype(at::kDouble));
    LossOfRows loss(shard, right, asked.ignored, asked.terms);
    for_parts_of_rows(left.size(0), right.size(0), [&](int64_t begin, int64_t end) {
      const at::Tensor part = left.slice(0, begin, end);
      result.add_(loss.compute(part, targets.slice(0, begin, end)).sum(at::kDouble));
      if (!made.of_hidden.defined() && !made.of_matrix.defined()) return;
      const at::Tensor of_logits = loss.gradients(1 / count).to(compute);
      if (made.of_hidden.defined()) made.of_hidden.slice(0, begin, end).copy_(of_logits.mm(right));
      if (made.of_matrix.defined()) made.of_matrix.add_(of_logits.t().mm(part));
    });
    result = result.div_(count).to(sums);
  }
  if (!made.of_hidden.defined() && !made.of_matrix.defined()) return result;
  const auto node = compat::make_node<MeanLossNode>(hidden, matrix, std::move(made));
  compat::set_history(result, node);
  return result;
}

}  // namespace

void VocabularyShard::verify(const at::Tensor& matrix) const {
  if (matrix.dim() == 2 && matrix.size(0) == rows.end - rows.begin) return;
  throw Error("parallel", ErrorKind::usage,
              {.what = "a matrix is not cut like the vocabulary of the tensor axis",
               .got = c10::str("shape ", matrix.sizes()),
               .expected = fmt::format("{} of {} rows", rows.end - rows.begin, words),
               .hint = "embedding and output matrix need rules of kind Split::vocabulary"});
}

at::Tensor vocabulary_lookup(const at::Tensor& indices, const at::Tensor& matrix,
                             const VocabularyShard& shard) {
  shard.verify(matrix);
  check_words(indices, shard, /*ignored=*/0, "Index");
  const auto words = own_words(indices, shard);
  const at::Tensor own = at::embedding(matrix, words.numbers)
                             .masked_fill(words.are_own.logical_not().unsqueeze(-1), 0);
  return sum_over_axis(own, shard.axis, shard.trace);
}

VocabularyOutput::VocabularyOutput(VocabularyShard shard, Enter enter)
    : shard_(std::move(shard)), enter_(std::move(enter)) {
  for (int rank = 0; rank < shard_.axis.size(); ++rank) {
    const auto rows = vocabulary_rows(shard_.words, rank, shard_.axis.size());
    widths_.push_back(rows.end - rows.begin);
  }
}

at::Tensor VocabularyOutput::logits(const at::Tensor& hidden, const at::Tensor& rows) const {
  shard_.verify(rows);
  return gather_columns(at::linear(enter_(hidden), rows), widths_, shard_.axis, shard_.trace);
}

nn::Tensors VocabularyOutput::loss(const at::Tensor& hidden, const at::Tensor& rows,
                                   const nn::OutputLoss& loss) const {
  shard_.verify(rows);
  const bool is_mean = loss.kind == nn::OutputLoss::Kind::mean;
  if (!nn::takes_linear_cross_entropy(hidden)) {
    const at::Tensor all = logits(hidden, rows);
    nn::Tensors given{nn::cross_entropy(all, loss)};
    if (!is_mean) given.push_back(all.flatten(0, -2).argmax(-1));
    return given;
  }
  const at::Tensor left = enter_(hidden).flatten(0, -2), targets = loss.targets.flatten();
  TORCH_CHECK(left.size(0) == targets.size(0), "Expected input batch_size (", left.size(0),
              ") to match target batch_size (", targets.size(0), ").");
  check_words(targets, shard_, loss.ignored, "Target");
  if (is_mean) return {mean_loss(left, rows, targets, loss, shard_)};
  const at::NoGradGuard no_grad;
  const auto compute = compat::compute_type(hidden);
  const compat::AutocastGuard in_own_type(hidden.device().type(), {});
  const at::Tensor wide = left.to(compute), matrix = rows.to(compute);
  std::vector<at::Tensor> losses, predictions;
  LossOfRows of_rows(shard_, matrix, loss.ignored);
  for_parts_of_rows(wide.size(0), matrix.size(0), [&](int64_t begin, int64_t end) {
    losses.push_back(of_rows.compute(wide.slice(0, begin, end), targets.slice(0, begin, end)));
    predictions.push_back(of_rows.predictions());
  });
  if (losses.empty()) return {wide.new_empty({0}), targets.new_empty({0})};
  return {at::cat(losses), at::cat(predictions)};
}

}  // namespace troika::parallel
