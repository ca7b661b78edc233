#include "troika/comm/nccl/nccl.h"

namespace troika::comm::nccl {

std::shared_ptr<GroupImpl> beside(std::shared_ptr<GroupImpl> host) {
  return host;
}

}  // namespace troika::comm::nccl
