#include "troika/train/task/outputs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::train {

namespace {

constexpr std::string_view kOnly = "outputs";

std::string_view outer_name(std::string_view name) {
  return name == nn::kPassing ? kOnly : name;
}

std::vector<std::string> names_of(const Outputs& outputs) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : outputs.named()) names.push_back(name);
  return names;
}

}  // namespace

Outputs::Outputs(const std::vector<std::string>& names, nn::Tensors tensors) {
  TROIKA_CHECK(names.size() == tensors.size() && !names.empty(), "a name for each output");
  if (tensors.size() == 1) {
    name_of_one_ = outer_name(names.front());
    one_ = std::move(tensors.front());
  } else {
    names_ = &names;
    several_ = std::move(tensors);
  }
}

const at::Tensor& Outputs::operator[](std::string_view name) const {
  if (!names_ && name == name_of_one_) return one_;
  for (size_t i = 0; i < several_.size(); ++i) {
    if (outer_name((*names_)[i]) == name) return several_[i];
  }
  throw Error("train", ErrorKind::usage,
              {.what = "the model has no such output",
               .got = std::string(name),
               .expected = fmt::format("{}", fmt::join(names_of(*this), ", "))});
}

const at::Tensor& Outputs::only() const {
  if (!names_) return one_;
  throw Error("train", ErrorKind::usage,
              {.what = "the model gives several outputs",
               .got = fmt::format("{}", fmt::join(names_of(*this), ", ")),
               .expected = "one",
               .hint = "a loss of your own takes them by name: loss(outputs, batch)"});
}

std::vector<std::pair<std::string, at::Tensor>> Outputs::named() const {
  if (!names_) return {{std::string(name_of_one_), one_}};
  std::vector<std::pair<std::string, at::Tensor>> result;
  for (size_t i = 0; i < several_.size(); ++i) {
    result.emplace_back(outer_name((*names_)[i]), several_[i]);
  }
  return result;
}

}  // namespace troika::train
