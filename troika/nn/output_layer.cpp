#include "troika/nn/output_layer.h"

#include "troika/compat/torch.h"
#include "troika/nn/linear_cross_entropy.h"

namespace troika::nn {

const std::vector<std::string>& OutputLoss::gives() const {
  static const std::vector<std::string> mean{"loss"}, each{"loss", "predictions"};
  return kind == Kind::mean ? mean : each;
}

at::Tensor cross_entropy(const at::Tensor& logits, const OutputLoss& loss) {
  const auto type = at::promote_types(logits.scalar_type(), at::kFloat);
  const at::Tensor rows = logits.flatten(0, -2).to(type), targets = loss.targets.flatten();
  if (loss.kind == OutputLoss::Kind::each) {
    return at::cross_entropy_loss(rows, targets, /*weight=*/{}, at::Reduction::None, loss.ignored);
  }
  const auto counted = targets.ne(loss.ignored);
  const auto of_all = [&](const at::Tensor& sum) {
    return loss.divisor ? sum.div(*loss.divisor) : sum.div(counted.sum());
  };
  const at::Tensor mean =
      loss.divisor ? of_all(at::cross_entropy_loss(rows, targets, /*weight=*/{}, at::Reduction::Sum,
                                                   loss.ignored, loss.terms.label_smoothing))
                   : at::cross_entropy_loss(rows, targets, /*weight=*/{}, at::Reduction::Mean,
                                            loss.ignored, loss.terms.label_smoothing);
  if (loss.terms.z_loss == 0) return mean;
  const at::Tensor squares = rows.logsumexp(1).square().masked_fill(counted.logical_not(), 0);
  return mean + of_all(squares.sum()).mul(loss.terms.z_loss);
}

Tensors BlockFunction::operator()(Tensors inputs) const {
  return function_(std::move(inputs), OutputLayer());
}

Tensors OutputLayer::operator()(const at::Tensor& hidden, const at::Tensor& weight) const {
  if (split_) {
    return loss_ ? split_->loss(hidden, weight, *loss_) : Tensors{split_->logits(hidden, weight)};
  }
  if (!loss_) return {at::linear(hidden, weight)};
  const bool is_mean = loss_->kind == OutputLoss::Kind::mean;
  if (!takes_linear_cross_entropy(hidden)) {
    const auto logits = at::linear(hidden, weight);
    Tensors given{cross_entropy(logits, *loss_)};
    if (!is_mean) given.push_back(logits.flatten(0, -2).argmax(-1));
    return given;
  }
  if (is_mean) {
    return {linear_cross_entropy(hidden, weight, loss_->targets, loss_->ignored, loss_->terms,
                                 loss_->divisor)};
  }
  auto rows = linear_cross_entropy_of_rows(hidden, weight, loss_->targets, loss_->ignored);
  return {std::move(rows.losses), std::move(rows.predictions)};
}

}  // namespace troika::nn
