# SPDX-License-Identifier: Apache-2.0
"""Operations of Nova; one operation, one file.

Their methods take the arguments of Nova's method, after ``stock``, which
runs it.
"""
