// Everything a program that uses Troika needs. A program with its own loop wants comm/world.h and
// parallel/data_parallel.h; one that leaves the loop to us wants train/trainer.h.
#pragma once

#include "troika/base/error.h"
#include "troika/cluster/environment.h"
#include "troika/cluster/failure.h"
#include "troika/comm/group.h"
#include "troika/comm/world.h"
#include "troika/data/loader.h"
#include "troika/data/make_dataset.h"
#include "troika/data/sampler.h"
#include "troika/nn/model.h"
#include "troika/nn/zoo.h"
#include "troika/parallel/data_parallel.h"
#include "troika/train/task.h"
#include "troika/train/trainer.h"
