// Modules that are made without memory, and get their values tensor by tensor later (deferred
// initialisation, like torchdistX's deferred_init).
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
// operators, with the same random draws in the same order. Not thread-safe.
class DeferredInit {
 public:
  DeferredInit();
  ~DeferredInit();
  DeferredInit(const DeferredInit&) = delete;
  DeferredInit& operator=(const DeferredInit&) = delete;

  // Calls `body`. Operators that write values are recorded instead of run. Tensors that `body`
  // makes on the CPU have no memory, except those of less than 128 KiB. May be called again for
  // further operations on these tensors, e.g. a cast.
  void record(const std::function<void()>& body);
  // Returns false after a recorded function has read values, which did not exist: its tensors are
  // then unusable.
  bool is_complete() const;

  // Identifies the memory of a tensor; views of one tensor have the same key.
  using Key = const void*;
  static Key key(const at::Tensor& tensor);
  // Whether materialize() will give values for this tensor.
  bool has(const at::Tensor& tensor) const;

  // Moves a tensor that has() to a device, where it has no memory either: materialize() makes the
  // values on the CPU, and copies them to the device where `take` leaves them. Tensors that share
  // memory go on sharing it. Afterwards nothing may be recorded that moves the tensor's elements.
  void move(const at::Tensor& tensor, c10::Device device);

  // The state of the CPU's generator from which the values are drawn: the state at the first
  // record(), unless set_generator() was called.
  const at::Tensor& generator() const;
  void set_generator(at::Tensor state);

  // Makes the values, one tensor after another. Calls `take` once for each tensor that has(), when
  // its values are final; `values` is a one-dimensional view of its elements in memory order.
  // `take` returns true if that memory may be released; otherwise the tensor keeps it, or gets a
  // copy on its device. At any time only the tensor being made, and the tensors it is computed
  // from, have memory on the CPU. Draws from a generator of its own. Call once.
  using Take = std::function<bool(Key tensor, const at::Tensor& values)>;
  void materialize(const Take& take);

 private:
  class Recorder;
  std::unique_ptr<Recorder> recorder_;
};

}  // namespace troika::compat
