// An authenticated connection to a server.
#pragma once

#include "troika/cluster/wire.h"
#include "troika/net/descriptor.h"
#include "troika/net/record.h"

namespace troika::cluster {

struct Connected {
  net::Descriptor socket;  // nonblocking
  net::Session session;
  Decoder in = {};  // holds what was read from it and not handled yet
};

}  // namespace troika::cluster
