// Work of a collective that runs on a device after its call has returned.
#pragma once

namespace troika::comm {

// Keeps the tensors of the work. Used by one thread at a time; that may be another thread than the
// one that queued the work, and may be beside calls of the back end.
class DeviceWork {
 public:
  virtual ~DeviceWork() = default;
  // Whether the device has finished the work. Does not block. Throws the Error of work that failed.
  virtual bool done() = 0;
  // Makes the device give up the work, so that streams which wait for it continue; the results are
  // then undefined. Called at most once, after a failure of the group. Blocks for a bounded time.
  virtual void give_up() = 0;
};

}  // namespace troika::comm
