// Errors of LibTorch in the steps of a task, told as a user can act on them.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

#include "troika/data/batch.h"
#include "troika/train/task/outputs.h"

namespace troika::train {

// An error of LibTorch in a loss, which is nested in it. what() is LibTorch's message.
class LossError : public std::runtime_error {
 public:
  // To be made in the handler of `problem`. `outputs`: those of the model that the loss was given.
  LossError(const std::exception& problem, const Outputs& outputs);

  // "outputs Float [8, 2]"; several are separated by commas.
  const std::string& outputs() const { return outputs_; }

 private:
  std::string outputs_;
};

// To be called in the handler of `problem`. Of an error of LibTorch, also in a LossError, throws
// Error(failure) that says `where` it was, LibTorch's message, and the shapes of the outputs that
// a loss was given and of `batch` if there is one; LibTorch's is nested in it
// (std::rethrow_if_nested). Rethrows anything else.
[[noreturn]] void rethrow_plainly(const std::exception& problem, const std::string& where,
                                  const data::Batch* batch = nullptr);

// Returns what `body` returns; what it throws goes through rethrow_plainly().
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
