// Modules that are made without memory, and get their values tensor by tensor when somebody has a
// place for each (deferred initialisation: torchdistX's deferred_init).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace troika::compat {

//   DeferredInit init;
//   init.record([&] { module = make_module(); });   // no memory for large tensors, no draws
//   if (init.is_complete()) init.materialize([&](DeferredInit::Key tensor, const at::Tensor&
//   values) {
//     ... copy what is wanted ...; return true;
//   });
//
// materialize() gives the bits that the recorded functions would have given: it runs the same
// operators, with the same draws of the same generators, in the same order. Not for use by several
// threads.
class DeferredInit {
 public:
  DeferredInit();
  ~DeferredInit();
  DeferredInit(const DeferredInit&) = delete;
  DeferredInit& operator=(const DeferredInit&) = delete;

  // Calls the function. Operators that write values are recorded in place of being carried out, and
  // tensors that it makes on the CPU have no memory, but those of less than 128 KiB. May be called
  // again, for what is done with these tensors next, as a cast.
  void record(const std::function<void()>& body);
  // False once a recorded function has read values, which were not there: what it made is of no
  // use.
  bool is_complete() const;

  // The memory of a tensor; views of it have the same.
  using Key = const void*;
  static Key key(const at::Tensor& tensor);
  // Whether materialize() will have values for it.
  bool has(const at::Tensor& tensor) const;

  // The state of the CPU's generator from which the values are drawn: that at the first record(),
  // unless another was set.
  const at::Tensor& generator() const;
  void set_generator(at::Tensor state);

  // Makes the values, one tensor after another. `take` is called once for each tensor that has(),
  // when its values are final; `values` are its elements as they lie in memory, of one dimension.
  // Returns whether that memory can be given up: else the tensor keeps it. At any time there is
  // memory for the tensor that is being made, and for what that is made of. The generator of the
  // thread ends in the state it had before. Can be called once.
  using Take = std::function<bool(Key tensor, const at::Tensor& values)>;
  void materialize(const Take& take);

 private:
  class Recorder;
  std::unique_ptr<Recorder> recorder_;
};

}  // namespace troika::compat
