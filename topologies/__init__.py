"""Shipped clusters and devices, installed as package data so that a bare name finds them from anywhere."""
