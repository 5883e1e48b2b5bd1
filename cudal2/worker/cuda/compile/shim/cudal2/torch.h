// Included ahead of a published source (-include): the stand-ins for torch's headers, and the standard headers that
// torch's bring along and sources silently rely on. torch/extension.h itself takes about 105 s of compilation.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "cudal2/call.h"
#include "cudal2/context.h"
#include "cudal2/macros.h"
#include "cudal2/recording.h"
#include "cudal2/tensor.h"
