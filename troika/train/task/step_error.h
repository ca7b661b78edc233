// Turns errors of LibTorch in a task's steps into messages that a user can act on.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

#include "troika/data/batch.h"
#include "troika/train/task/outputs.h"

namespace troika::train {

// Wraps an error of LibTorch in a loss, which is nested in it. what() is LibTorch's message.
class LossError : public std::runtime_error {
 public:
  // Must be made in the handler of `problem`. `outputs` are the model outputs given to the loss.
  LossError(const std::exception& problem, const Outputs& outputs);

  // For example "outputs Float [8, 2]"; several outputs are separated by commas.
  const std::string& outputs() const { return outputs_; }

 private:
  std::string outputs_;
};

// Must be called in the handler of `problem`. For an error of LibTorch, also inside a LossError,
// throws Error(failure) with the place (`where`), LibTorch's message, the shapes of the loss's
// outputs and the shapes of `batch` if given. LibTorch's error is nested in it
// (std::rethrow_if_nested). Rethrows any other error.
[[noreturn]] void rethrow_plainly(const std::exception& problem, const std::string& where,
                                  const data::Batch* batch = nullptr);

// Returns the result of `body`; passes its errors to rethrow_plainly().
template <typename Body>
decltype(auto) with_plain_errors(std::string_view where, const Body& body,
                                 const data::Batch* batch = nullptr) {
  try {
    return body();
  } catch (const std::exception& problem) {
    rethrow_plainly(problem, std::string(where), batch);
  }
}

}  // namespace troika::train
